"""The YAML policy: its types, its files, and what is said of a bad one."""

from trimtab.policy.load import example_policy, load_policy, parse_policy, problem_at
from trimtab.policy.model import Policy
from trimtab.policy.problem import PolicyError, Problem
from trimtab.policy.schema import json_schema
from trimtab.policy.watch import PolicyFile

__all__ = [
    "Policy",
    "PolicyError",
    "PolicyFile",
    "Problem",
    "example_policy",
    "json_schema",
    "load_policy",
    "parse_policy",
    "problem_at",
]
