"""The search daemon: trials on a SQL study, trained in batches."""

if __name__ != "sweepd.optimize":  # a second name would give every class a second identity
    raise ImportError("this folder is the package sweepd.optimize: import it by that name")
