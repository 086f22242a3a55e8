from trimtab.cli.child import forbid_fork_handlers

forbid_fork_handlers()
