"""What a synthesizer knows: networks, demands, schedules, their times and a checker."""
