"""Settings of all tests; and being here, it lets tests in every folder import the helpers beside it."""

from hypothesis import settings

# Times say nothing on a loaded machine.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
