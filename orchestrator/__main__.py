"""The program: Ctrl-C ends it in one line from its first moment on, also while modules are loaded."""

import sys


def main() -> None:
    """What the console script and `python -m orchestrator` run."""
    try:
        from orchestrator.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
