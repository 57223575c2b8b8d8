"""Print the JSON Schema of scenarios, for editors: name it in a first line
# yaml-language-server: $schema=scenario.schema.json
"""

import argparse
import json


def arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> int:
    from astrasim_py.scenario.schema import json_schema

    print(json.dumps(json_schema(), indent=1, sort_keys=False))
    return 0
