//! The platforms and their settings: a view of the catalogue, kept up by a watch.
