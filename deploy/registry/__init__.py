"""The registry of bundles and deployment slots: database, migrations, bundle files."""
