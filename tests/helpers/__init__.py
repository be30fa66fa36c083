"""What several rooms use: processes, headers, a made-up driver, compiled C; and tests of that."""
