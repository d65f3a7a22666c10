"""The report: one HTML file that shows who benefits from whom, and whether federating pays for each client."""
