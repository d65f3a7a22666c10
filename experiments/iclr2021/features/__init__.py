"""A scale at which a run takes seconds: real images through fixed features that nothing was trained for."""
