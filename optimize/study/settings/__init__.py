"""The declarations of the settings of `sweepd train`, one dataclass per kind of study."""
