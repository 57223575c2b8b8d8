"""Print the JSON Schema of scenarios, for editors: name it in a first line
# yaml-language-server: $schema=scenario.schema.json
"""

import argparse
import json

from astrasim_py.cli.options import format_option
from astrasim_py.cli.output import printed


def arguments(parser: argparse.ArgumentParser) -> None:
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.scenario.schema import json_schema

    schema = json_schema()
    form = "text" if args.format == "json" else args.format  # the text is JSON
    keys = [{"key": key, "about": part.get("description")} for key, part in schema["properties"].items()]
    if not printed(form, schema, keys):
        print(json.dumps(schema, indent=1, sort_keys=False))
    return 0
