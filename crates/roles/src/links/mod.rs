//! The ways between gateways and carriers: within the process, or over the internal port to other nodes.
