//! The public gRPC protocol `whimbrel.v1`: the generated types, services and clients, for the roles that serve it and for whoever speaks it.

tonic::include_proto!("whimbrel.v1");
