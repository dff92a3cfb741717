"""Example environments of the setting tools, one a skill.

Actions are `<tool_call>{...}</tool_call>` and `<answer>...</answer>`.
"""
