//! Calls find a worker among several processes, and another where one is gone.
