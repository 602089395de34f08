"""The registry of bundles and slots: database, migrations, bundle files."""
