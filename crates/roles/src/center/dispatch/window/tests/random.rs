//! Random runs of a window beside a naive model of it.
