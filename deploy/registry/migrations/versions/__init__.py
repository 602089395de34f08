"""The revisions, named in order."""
