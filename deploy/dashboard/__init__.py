"""Views of paper trading and studies, in the terminal and as a local web page."""
