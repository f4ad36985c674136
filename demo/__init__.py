"""`make demo`: a year of real flights, a killed process, and every output row checked."""
