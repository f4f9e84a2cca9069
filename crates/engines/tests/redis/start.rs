//! Starts with an unsuitable or unreachable Redis.

use std::time::{Duration, Instant};

use whimbrel_engines::needs_servers;
use whimbrel_engines::redis::{RedisConnection, RedisSettings, RedisStartError};

use crate::services::{OwnRedis, free_address};
use crate::{CLUSTER, ONE, Shared, connect};

async fn refused(settings: RedisSettings) -> RedisStartError {
    RedisConnection::connect(settings).await.err().expect("such a start fails")
}

#[tokio::test]
async fn a_start_without_redis_fails_soon_and_names_the_address() {
    let address = free_address();
    let began = Instant::now();
    let error = refused(RedisSettings::new([address.as_str()])).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(error.to_string().contains(&address), "{error}");
}

#[tokio::test]
async fn a_password_is_used_and_never_shown() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    assert_eq!(redis.cli(&["config", "set", "requirepass", "open-sesame"]), "OK");
    let with = |password: &str| RedisSettings::new([format!("redis://:{password}@{}", redis.address())]);
    let connection = connect(with("open-sesame")).await;
    assert!(!connection.description().contains("sesame"), "{}", connection.description());
    let error = refused(with("wrong-word")).await;
    assert!(!error.to_string().contains("wrong-word"), "{error}");
}

#[tokio::test]
async fn a_replica_is_refused() {
    needs_servers!(ONE);
    let primary = OwnRedis::start();
    let replica = OwnRedis::start_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    assert_eq!(refused(replica.settings()).await, RedisStartError::Replica { address: replica.address() });
}

#[tokio::test]
async fn several_addresses_without_a_cluster_are_rejected() {
    needs_servers!(ONE);
    let mut settings = Shared(ONE).settings();
    settings.urls.push("127.0.0.1:1".to_owned());
    let address = settings.urls[0].clone();
    assert_eq!(refused(settings).await, RedisStartError::NoCluster { address });
}

#[tokio::test]
async fn a_cluster_is_found_by_any_of_its_nodes() {
    needs_servers!(ONE, CLUSTER);
    let mut settings = Shared(CLUSTER).settings();
    let gone = free_address();
    settings.urls = vec![gone, settings.urls[1].clone()];
    let connection = connect(settings).await;
    assert!(connection.description().starts_with("redis cluster at "), "{}", connection.description());
}
