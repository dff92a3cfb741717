"""`python -m infra.cli`: how the supervisor starts its children."""

from infra.cli import main

if __name__ == "__main__":
    main()
