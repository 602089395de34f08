"""What the gates of markets and games share: rules, findings, statistics, the promotion itself."""
