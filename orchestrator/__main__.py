"""The program: Ctrl-C, and any error, ends it in one line from its first moment on, also while modules are loaded."""

import sys


def main() -> None:
    """What the console script and `python -m orchestrator` run."""
    try:
        from orchestrator.endings import prepare, unforeseen

        prepare()
        try:
            from orchestrator.cli.main import main as run
        except Exception as error:  # of an installation that is not whole
            sys.exit(unforeseen(error))
        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
