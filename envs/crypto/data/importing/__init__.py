"""Import of bar files of other programs: `sweepd data import`."""
