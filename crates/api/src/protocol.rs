//! The public gRPC protocol `whimbrel.v1`: generated types, services and clients.

tonic::include_proto!("whimbrel.v1");
