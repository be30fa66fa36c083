"""What several folders use: processes, headers, a fake driver, compiled C.  Some of it has tests
here."""
