"""Settings of the property tests in this folder."""

from hypothesis import settings

# A busy machine makes single examples slow; that is no failure.
settings.register_profile("data", deadline=None)
settings.load_profile("data")
