"""The program. Ctrl-C and any error end it with one line, even while modules are being loaded."""

import sys


def main() -> None:
    """The entry point of the console script and of `python -m orchestrator`."""
    try:
        from orchestrator.errors import InputError, refuse_system

        try:
            refuse_system()  # the next modules need POSIX
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        from orchestrator.stdio import leave, prepare_streams, report_internal_error

        prepare_streams()
        try:
            from orchestrator.cli.main import main as run
        except Exception as error:  # an incomplete installation, for example
            sys.exit(report_internal_error(error))
        try:
            run()
        except SystemExit as ended:
            leave(ended.code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    if not sys.flags.safe_path:  # python -m looks into the working directory first: for somebody else's `methods` too
        sys.path.append(sys.path.pop(0))
    main()
