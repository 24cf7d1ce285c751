"""`linnaeus doctor SOURCE [KEY=VALUE ...]`: report what is wrong with a source of photographs. See `linnaeus doctor --help`."""

from linnaeus.workloads.taxonomy.doctor.doctor_cli import main

__all__ = ["main"]


if __name__ == "__main__":
    raise SystemExit(main())
