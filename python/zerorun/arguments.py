"""DeepSpeed's command-line arguments."""


def add_config_arguments(parser):
    """Adds --deepspeed, --deepspeed_config and --local_rank (if the parser has none) and returns the parser."""
    group = parser.add_argument_group("ZeroRun", "with DeepSpeed's names")
    group.add_argument("--deepspeed", default=False, action="store_true", help="has no effect: for the program to ask")
    group.add_argument("--deepspeed_config", default=None, type=str, help="path of a ds_config.json")
    known = {option for action in parser._actions for option in action.option_strings}
    if not known & {"--local_rank", "--local-rank"}:
        group.add_argument("--local_rank", default=-1, type=int, help="has no effect: LOCAL_RANK says it")
    return parser
