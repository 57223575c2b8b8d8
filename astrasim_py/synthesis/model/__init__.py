"""Networks, demands, schedules, their times and a checker."""
