"""The long run: recorded histories, simulation, fuzzing and repeated kills for as long as one likes (`make soak`)."""
