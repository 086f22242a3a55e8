from hypothesis import settings

from trimtab.process.child import forbid_fork_handlers

forbid_fork_handlers()

# How long an example takes says more of the machine than of the code.
settings.register_profile("trimtab", deadline=None)
settings.load_profile("trimtab")
