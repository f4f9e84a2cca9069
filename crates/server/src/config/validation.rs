//! Validates settings against each other. Each problem names the settings and their sources. The checks read only the typed
//! configuration; the parser has already validated each single value.

use std::time::Duration;

use whimbrel_api::endpoint::AddressGuard;
use whimbrel_engines::embedded::{LogSettings, record_bytes_max};
use whimbrel_model::format_duration;
use whimbrel_model::limits::KEY_MAX_BYTES;

use super::EffectiveSettings;
use super::setting_type::{CoordinationEngineName, LogEngineName, PresenceEngineName, StateEngineName};
use super::settings::Config;
use super::sources::{Findings, ValueSource};

/// Minimum length of the HS256 secret in bytes: the length of its hash.
const CLIENT_SECRET_MIN_BYTES: usize = 32;

/// Adds a problem or a warning for each conflict between settings.
pub fn validate(config: &Config, settings: &EffectiveSettings, findings: &mut Findings) {
    let at = |path: &str| match settings.get(path).1 {
        ValueSource::Default => format!("`{path}`"),
        source => format!("`{path}` ({source})"),
    };
    validate_addresses(config, &at, findings);
    validate_cluster(config, &at, findings);
    validate_servers(config, &at, findings);
    validate_devices(config, &at, findings);
    validate_kafka(config, &at, findings);
    let mut wrong = |text: String| findings.problems.push(text);
    if config.limits.batch_bytes < config.limits.payload_bytes {
        wrong(format!(
            "{} is less than {}: a batch of one message could be rejected although the message itself is not",
            at("limits.batch_bytes"),
            at("limits.payload_bytes")
        ));
    }
    let largest = config.limits.payload_bytes + config.limits.headers * config.limits.header_bytes + KEY_MAX_BYTES;
    let taken = record_bytes_max(&LogSettings::default());
    if config.log.engine == LogEngineName::Embedded && largest > taken {
        wrong(format!(
            "{}: a message with its headers can have {largest} bytes; the limit of the embedded log is {taken}",
            at("limits.payload_bytes")
        ));
    }
    if config.limits.in_flight_bytes < config.limits.batch_bytes {
        wrong(format!(
            "{} is less than {}: the largest batch would always be rejected",
            at("limits.in_flight_bytes"),
            at("limits.batch_bytes")
        ));
    }
    if config.log.journal_bytes < 3 * config.log.journal_file_bytes {
        wrong(format!("{} is less than three times {}", at("log.journal_bytes"), at("log.journal_file_bytes")));
    }
    if config.log.checkpoint_bytes > config.log.journal_bytes / 2 {
        wrong(format!("{} is more than half of {}", at("log.checkpoint_bytes"), at("log.journal_bytes")));
    }
    if config.log.engine == LogEngineName::Embedded && config.topics.replicas.is_some_and(|copies| copies > 1) {
        wrong(format!(
            "{}: the embedded log keeps one copy; for more, set log.engine = \"kafka\"",
            at("topics.replicas")
        ));
    }
    if config.topics.replicas.zip(config.topics.min_insync).is_some_and(|(copies, least)| least > copies) {
        wrong(format!("{} is greater than {}", at("topics.min_insync"), at("topics.replicas")));
    }
    if config.process.data.as_os_str().is_empty() {
        wrong(format!("{} is empty: name a folder", at("data")));
    }
    if config.subscriptions.breaker_pause_max < config.subscriptions.breaker_pause {
        wrong(format!("{} is less than {}", at("subscriptions.breaker_pause_max"), at("subscriptions.breaker_pause")));
    }
    let places = [
        ("callbacks.allow", &config.callbacks.allow),
        ("callbacks.deny", &config.callbacks.deny),
        ("horn.allow", &config.horn.allow),
    ];
    for (path, entries) in places {
        if let Err(error) = AddressGuard::new(entries, &[]) {
            wrong(format!("{}: {error}", at(path)));
        }
    }
    if let Err(error) = config.telemetry.level.parse::<tracing_subscriber::filter::Targets>() {
        wrong(format!("{}: `{}` is not a log level: {error}", at("telemetry.level"), config.telemetry.level));
    }
}

/// Time beyond `kafka.message_timeout` that the answer to a publish may take. Equals `ANSWER_GRACE` of the Kafka engine, which is an
/// optional part of the build.
const KAFKA_ANSWER_GRACE: Duration = Duration::from_secs(5);

/// Whether the text is `host:port`. A host with colons is in brackets: `[::1]:9092`.
fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bare = !host.is_empty() && !host.contains([':', '/']);
        (is_bare || (host.starts_with('[') && host.ends_with(']'))) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

/// Checks the settings of `[kafka]` against each other.
fn validate_kafka(config: &Config, at: &impl Fn(&str) -> String, findings: &mut Findings) {
    if config.log.engine != LogEngineName::Kafka {
        return;
    }
    let kafka = &config.servers.kafka;
    let mut wrong = |text: String| findings.problems.push(text);
    if kafka.bootstrap.trim().is_empty() {
        wrong(format!("{} is empty: name at least one broker as host:port", at("kafka.bootstrap")));
    }
    let brokers = kafka.bootstrap.split(',').map(str::trim).filter(|address| !address.is_empty());
    for address in brokers.filter(|address| !is_host_and_port(address)) {
        let example = if address.contains(':') { "127.0.0.1:9092".to_owned() } else { format!("{address}:9092") };
        wrong(format!("{}: `{address}` is not a host:port, such as {example}", at("kafka.bootstrap")));
    }
    if config.receipts.lease <= kafka.message_timeout + KAFKA_ANSWER_GRACE {
        wrong(format!(
            "{} is {}, and {} is {}: the lease must exceed the timeout by more than {}; raise the lease or lower the timeout",
            at("receipts.lease"),
            format_duration(config.receipts.lease),
            at("kafka.message_timeout"),
            format_duration(kafka.message_timeout),
            format_duration(KAFKA_ANSWER_GRACE)
        ));
    }
    let files = [
        ("kafka.tls_ca_file", &kafka.tls_ca_file),
        ("kafka.tls_certificate_file", &kafka.tls_certificate_file),
        ("kafka.tls_key_file", &kafka.tls_key_file),
    ];
    if let Some((path, _)) = files.iter().find(|(_, file)| file.is_some() && !kafka.tls) {
        wrong(format!("{} is set, but `kafka.tls` is false: set `kafka.tls = true`, or remove this setting", at(path)));
    }
    if kafka.tls_certificate_file.is_some() != kafka.tls_key_file.is_some() {
        let (certificate, key) = (at("kafka.tls_certificate_file"), at("kafka.tls_key_file"));
        wrong(format!("only one of {certificate} and {key} is set: mutual TLS needs both"));
    }
    let credentials = [
        ("kafka.sasl_username", kafka.sasl_username.is_empty()),
        ("kafka.sasl_password", kafka.sasl_password.0.is_empty()),
    ];
    if kafka.sasl == "none" {
        if let Some((path, _)) = credentials.iter().find(|(_, is_empty)| !is_empty) {
            wrong(format!(
                "{} is set, but {} is \"none\": set it to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, or remove the credentials",
                at(path),
                at("kafka.sasl")
            ));
        }
    } else if let Some((path, _)) = credentials.iter().find(|(_, is_empty)| *is_empty) {
        wrong(format!(
            "{} is {}, but {} is empty: set `kafka.sasl_username` and `kafka.sasl_password`",
            at("kafka.sasl"),
            kafka.sasl,
            at(path)
        ));
    }
}

/// Checks the addresses, API keys and internal keys.
fn validate_addresses(config: &Config, at: &impl Fn(&str) -> String, findings: &mut Findings) {
    let mut wrong = |text: String| findings.problems.push(text);
    if !config.process.listen.ip().is_loopback() && config.keys.is_empty() && !config.process.insecure {
        wrong(format!(
            "{}: {} can be reached from other machines, and no API keys are configured; add [[keys]] to the \
             configuration file, listen on 127.0.0.1, or pass --insecure to disable authentication",
            at("listen"),
            config.process.listen
        ));
    }
    if config.process.listen == config.process.internal_listen && config.process.listen.port() != 0 {
        wrong(format!("{} is the same address as {}", at("internal_listen"), at("listen")));
    }
    let is_apart = config.coordination.engine == CoordinationEngineName::Etcd;
    if is_apart
        && !config.process.internal_listen.ip().is_loopback()
        && config.process.internal_key.0.is_empty()
        && !config.process.insecure
    {
        wrong(format!(
            "{}: {} can be reached from other machines, and any of them could change holds; set internal_key, the \
             same on every node, or pass --insecure",
            at("internal_listen"),
            config.process.internal_listen
        ));
    }
    if config.process.internal_key.0.is_empty() && !config.process.internal_key_previous.0.is_empty() {
        wrong(format!(
            "{} needs internal_key: without internal_key every caller is accepted",
            at("internal_key_previous")
        ));
    }
    if is_apart && config.process.internal_listen.ip().is_unspecified() && config.process.advertise.is_none() {
        wrong(format!(
            "{}: {} is not an address that other nodes can reach; set advertise = \"host:port\"",
            at("internal_listen"),
            config.process.internal_listen
        ));
    }
    let advertised_port = config.process.advertise.as_ref().map(|place| place.rsplit_once(':').map(|(_, port)| port));
    if advertised_port.is_some_and(|port| port.is_none_or(|port| port.parse::<u16>().is_err())) {
        wrong(format!("{} is not a host:port", at("advertise")));
    }
}

/// Checks that nodes of a cluster share all state that another node may have to take over.
fn validate_cluster(config: &Config, at: &impl Fn(&str) -> String, findings: &mut Findings) {
    let engine = at("coordination.engine");
    if config.coordination.engine == CoordinationEngineName::Process {
        if !config.process.roles.are_all() {
            findings.problems.push(format!(
                "{}: a node without all roles finds the others through etcd; run all roles here, or set coordination.engine = \
                 \"etcd\"; {engine} is \"process\"",
                at("roles")
            ));
        }
        return;
    }
    if config.log.engine == LogEngineName::Embedded {
        findings.problems.push(format!(
            "{engine} is \"etcd\", and {} keeps the log in this node's data folder, where no other node can read it; set \
             log.engine = \"kafka\", or coordination.engine = \"process\" for a single node",
            at("log.engine")
        ));
    }
    let (roles, embedded) = (config.process.roles, StateEngineName::Embedded);
    let taken_over = [
        ("timers.engine", config.timers.engine, roles.center, "the store of holds", "take it over"),
        (
            "subscriptions.engine",
            config.subscriptions.engine,
            roles.center,
            "the progress of subscriptions",
            "take it over",
        ),
        ("push.engine", config.push.engine, roles.carrier, "inboxes", "take them over"),
        ("devices.engine", config.devices.engine, roles.receive || roles.horn, "the registry of devices", "read it"),
    ];
    for (path, _, _, what, use_it) in taken_over.iter().filter(|(_, name, is_used, ..)| *name == embedded && *is_used) {
        findings.problems.push(format!(
            "{engine} is \"etcd\", and {} keeps {what} in this node's data folder, where no other node can {use_it}; set {path} = \
             \"redis\"",
            at(path)
        ));
    }
    if config.push.engine == embedded && roles.receive && !roles.carrier {
        findings.warnings.push(format!(
            "{engine} is \"etcd\", and {} cannot read the inboxes of carriers on other nodes: this node accepts pushes whatever their \
             backlog; set push.engine = \"redis\" to enforce push.max_backlog",
            at("push.engine")
        ));
    }
    if config.presence.writers.is_empty() {
        let said = format!(
            "{engine} is \"etcd\", and {} is empty: each node writes presence on its own",
            at("presence.writers")
        );
        match config.presence.engine {
            PresenceEngineName::Memory => findings.problems.push(format!(
                "{said}, in its memory, where no other node can read it; name a writer for each shard, the same on every node"
            )),
            PresenceEngineName::Redis => findings.warnings.push(format!(
                "{said}, to the same store; name one writer for each shard, the same on every node"
            )),
        }
    }
    if config.receipts.engine == embedded && roles.receive {
        findings.warnings.push(format!(
            "{} keeps the receipts of this node only: a repeat that reaches another node at the same moment is not detected \
             there; receipts.engine = \"redis\" shares receipts",
            at("receipts.engine")
        ));
    }
    if config.process.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        findings.problems.push(format!("{} is empty", at("name")));
    }
}

/// Checks the settings of devices: authentication, origins, presence and notifications.
fn validate_devices(config: &Config, at: &impl Fn(&str) -> String, findings: &mut Findings) {
    let mut wrong = |text: String| findings.problems.push(text);
    let secret = config.clients.secret.0.len();
    if secret > 0 && secret < CLIENT_SECRET_MIN_BYTES {
        wrong(format!("{} has {secret} bytes, but needs at least {CLIENT_SECRET_MIN_BYTES}", at("clients.secret")));
    }
    for bad in config.push.retry_after.iter().filter_map(|time| time.as_ref().err()) {
        wrong(format!("{}: {bad}", at("push.retry_after")));
    }
    for origin in &config.gateway.origins {
        // `null` is the origin of a page that was opened from a file.
        let is_origin = ["*", "null"].contains(&origin.as_str())
            || origin.split_once("://").is_some_and(|(scheme, rest)| {
                !scheme.is_empty() && !rest.is_empty() && !rest.contains('/') && !rest.contains('*')
            });
        if !is_origin {
            wrong(format!("{}: `{origin}` is not an origin such as https://shop.example, or *", at("gateway.origins")));
        }
    }
    let centres = config.presence.writers.len();
    if let Some(empty) = config.presence.writers.iter().position(Vec::is_empty) {
        wrong(format!("{}: data centre {empty} has no writer", at("presence.writers")));
    }
    for writer in config.presence.writers.iter().flatten() {
        if writer.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
            wrong(format!("{}: `{writer}` is not a host:port", at("presence.writers")));
        }
    }
    if config.presence.data_centre >= centres.max(1) {
        wrong(format!(
            "{} is {}, but {} names {} data centres, counted from 0",
            at("presence.data_centre"),
            config.presence.data_centre,
            at("presence.writers"),
            centres.max(1)
        ));
    }
    let (apns, webpush) = (&config.providers.apns, &config.providers.webpush);
    if apns.key_file.is_some() {
        for (path, text) in [("horn.apns.key_id", &apns.key_id), ("horn.apns.team_id", &apns.team_id)] {
            if text.trim().is_empty() {
                wrong(format!("{} is empty, but {} is set", at(path), at("horn.apns.key_file")));
            }
        }
    }
    let is_contact = webpush.subject.starts_with("mailto:") || webpush.subject.starts_with("https://");
    if webpush.key_file.is_some() && !is_contact {
        wrong(format!("{} must be mailto:ops@shop.example or an https URL", at("horn.webpush.subject")));
    }
}

/// Checks the servers of the engines in use.
fn validate_servers(config: &Config, at: &impl Fn(&str) -> String, findings: &mut Findings) {
    let uses_redis = [
        config.timers.engine,
        config.receipts.engine,
        config.subscriptions.engine,
        config.push.engine,
        config.devices.engine,
    ]
    .contains(&StateEngineName::Redis)
        || config.presence.engine == PresenceEngineName::Redis;
    let (redis, etcd) = (&config.servers.redis, &config.servers.etcd);
    let mut wrong = |text: String| findings.problems.push(text);
    if uses_redis && redis.urls.is_empty() {
        wrong(format!("{} is empty: name a server as redis://host:port", at("redis.urls")));
    }
    if uses_redis && (redis.prefix.is_empty() || redis.prefix.contains(['{', '}'])) {
        wrong(format!("{} must have at least one character, and no braces", at("redis.prefix")));
    }
    if redis.password.0.is_empty() && !redis.user.is_empty() {
        wrong(format!("{} is set without {}", at("redis.user"), at("redis.password")));
    }
    if redis.urls.iter().any(|url| url.contains('@')) {
        wrong(format!(
            "{} contains a user or a password, which `whimbrel check` would print; move them to redis.user and redis.password",
            at("redis.urls")
        ));
    }
    if config.coordination.engine == CoordinationEngineName::Etcd && etcd.endpoints.is_empty() {
        wrong(format!("{} is empty: name a member as http://host:port", at("etcd.endpoints")));
    }
    if etcd.user.is_empty() && !etcd.password.0.is_empty() {
        wrong(format!("{} is set without {}", at("etcd.password"), at("etcd.user")));
    }
    if etcd.session.subsec_nanos() != 0 {
        wrong(format!("{} is not a number of whole seconds", at("etcd.session")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LoadedConfig, Sources, load};

    fn with_flags(flags: &[(&str, &str)]) -> LoadedConfig {
        let flags =
            flags.iter().map(|(path, text)| ((*path).into(), (*text).into(), format!("--set {path}"))).collect();
        load(&Sources { flags, ..Sources::default() })
    }

    fn problems(flags: &[(&str, &str)]) -> String {
        with_flags(flags).findings.problems.join("\n")
    }

    const SHARED: [(&str, &str); 9] = [
        ("coordination.engine", "etcd"),
        ("log.engine", "kafka"),
        ("timers.engine", "redis"),
        ("receipts.engine", "redis"),
        ("subscriptions.engine", "redis"),
        ("push.engine", "redis"),
        ("presence.engine", "redis"),
        ("presence.writers", "127.0.0.1:7601"),
        ("devices.engine", "redis"),
    ];

    #[test]
    fn a_cluster_rejects_engines_that_only_one_node_can_read() {
        let refused = problems(&[("coordination.engine", "etcd")]);
        assert!(
            refused.contains("`log.engine` keeps the log")
                && refused.contains("timers.engine = \"redis\"")
                && refused.contains("subscriptions.engine = \"redis\""),
            "{refused}"
        );
        let shared = with_flags(&SHARED);
        assert!(shared.config.is_some() && shared.findings.warnings.is_empty(), "{:?}", shared.findings);
    }

    #[test]
    fn a_node_without_all_roles_needs_etcd() {
        for role in ["receive", "center", "worker", "receive,center", "horn"] {
            assert!(problems(&[("roles", role)]).contains("through etcd"), "{role}");
            assert!(with_flags(&[&SHARED[..], &[("roles", role)]].concat()).config.is_some(), "{role}");
        }
        let apart = [&SHARED[..], &[("roles", "receive"), ("push.engine", "embedded")]].concat();
        assert!(with_flags(&apart).findings.warnings.iter().any(|warning| warning.contains("push.max_backlog")));
        assert!(with_flags(&[("roles", "center,receive,worker,gateway,presence,carrier,horn")]).config.is_some());
        assert!(problems(&[("roles", "baker")]).contains("a list of all, receive, center, worker"));
    }

    #[test]
    fn callback_destinations_are_validated() {
        assert!(problems(&[("callbacks.deny", "10.0.0.0/99")]).contains("`callbacks.deny`"));
        assert!(problems(&[("horn.allow", "10.0.0.0/99")]).contains("`horn.allow`"));
        assert!(with_flags(&[("callbacks.allow", "10.0.0.0/8, *.lan")]).config.is_some());
        let backwards = [("subscriptions.breaker_pause", "1m"), ("subscriptions.breaker_pause_max", "1s")];
        assert!(problems(&backwards).contains("is less than"), "{}", problems(&backwards));
    }

    #[test]
    fn settings_of_devices_and_notifications_are_validated() {
        assert!(problems(&[("clients.secret", "short")]).contains("at least 32"));
        for origin in ["shop.example", "https://a/b", "https://*.example"] {
            assert!(problems(&[("gateway.origins", origin)]).contains("is not an origin"), "{origin}");
        }
        assert!(with_flags(&[("gateway.origins", "https://shop.example, null")]).config.is_some());
        assert!(problems(&[("push.retry_after", "1s, soon")]).contains("`soon`"));
        assert!(problems(&[("presence.data_centre", "1")]).contains("counted from 0"));
        assert!(problems(&[("presence.writers", "a:1;b")]).contains("`b` is not a host:port"));
        assert!(problems(&[("horn.apns.key_file", "k.p8")]).contains("horn.apns.team_id"));
        assert!(problems(&[("horn.webpush.key_file", "k.pem")]).contains("horn.webpush.subject"));
    }

    #[test]
    fn a_public_internal_address_requires_a_key() {
        let open = [&SHARED[..], &[("internal_listen", "0.0.0.0:7601"), ("advertise", "10.0.0.1:7601")]].concat();
        assert!(problems(&open).contains("set internal_key"), "{}", problems(&open));
        let keyed = [&open[..], &[("internal_key", "0123456789abcdef")]].concat();
        assert!(with_flags(&keyed).config.is_some(), "{}", problems(&keyed));
        assert!(problems(&[("internal_key_previous", "old")]).contains("needs internal_key"));
        assert!(with_flags(&[("internal_key", "new"), ("internal_key_previous", "old")]).config.is_some());
        let nowhere = [&SHARED[..], &[("internal_listen", "0.0.0.0:7601"), ("insecure", "true")]].concat();
        assert!(problems(&nowhere).contains("not an address that other nodes can reach"), "{}", problems(&nowhere));
        assert!(problems(&[("advertise", "example")]).contains("not a host:port"));
    }

    #[test]
    fn servers_of_redis_are_separated_by_commas_and_show_no_password() {
        let several = [("timers.engine", "redis"), ("redis.urls", "redis://a:1, redis://b:2")];
        assert_eq!(with_flags(&several).config.unwrap().servers.redis.urls, ["redis://a:1", "redis://b:2"]);
        assert!(problems(&[("redis.urls", "redis://u:p@a:1")]).contains("redis.password"));
        assert!(problems(&[("timers.engine", "redis"), ("redis.urls", " ,")]).contains("name a server"));
    }

    #[test]
    fn a_public_address_requires_keys_or_insecure() {
        let refused = with_flags(&[("listen", "0.0.0.0:7600")]);
        assert!(refused.findings.problems[0].contains("no API keys are configured"), "{:?}", refused.findings);
        assert!(with_flags(&[("listen", "0.0.0.0:7600"), ("insecure", "true")]).config.is_some());
        let key = r#"[{name="a",secret="0123456789abcdef",scopes=["publish"]}]"#;
        assert!(with_flags(&[("listen", "[::]:7600"), ("keys", key)]).config.is_some());
    }

    #[test]
    fn every_broker_of_the_bootstrap_has_a_port() {
        let with = |bootstrap: &str| problems(&[("log.engine", "kafka"), ("kafka.bootstrap", bootstrap)]);
        for right in ["kafka-1:9092", "kafka-1:9092, 10.0.0.2:9092,", "[::1]:9092"] {
            assert_eq!(with(right), "", "{right}");
        }
        for wrong in ["kafka-1", "kafka-1:", "kafka-1:0", "kafka-1:65536", ":9092", "::1:9092", "http://kafka-1:9092"] {
            let problem = with(&format!("kafka-0:9092,{wrong}"));
            assert!(problem.contains(&format!("`{wrong}` is not a host:port, such as")), "{problem}");
        }
        assert!(with("kafka-1").contains("such as kafka-1:9092"));
    }

    #[test]
    fn kafka_credentials_and_files_must_fit_together() {
        let on_kafka = |more: &[(&str, &str)]| problems(&[&[("log.engine", "kafka")], more].concat());
        assert_eq!(on_kafka(&[]), "");
        assert!(on_kafka(&[("kafka.tls_ca_file", "ca.pem")]).contains("`kafka.tls` is false"));
        let half = [("kafka.tls", "true"), ("kafka.tls_key_file", "key.pem")];
        assert!(on_kafka(&half).contains("mutual TLS needs both"));
        assert!(on_kafka(&[("kafka.sasl", "PLAIN")]).contains("is PLAIN, but `kafka.sasl_username` is empty"));
        let without_password = [("kafka.sasl", "PLAIN"), ("kafka.sasl_username", "eva")];
        assert!(on_kafka(&without_password).contains("is PLAIN, but `kafka.sasl_password` is empty"));
        assert!(on_kafka(&[("kafka.sasl_username", "eva")]).contains("`kafka.sasl` is \"none\": set it to PLAIN"));
        assert!(on_kafka(&[("kafka.sasl", "GSSAPI")]).contains("one of none, PLAIN"));
        assert!(on_kafka(&[("kafka.options", "acks=1")]).contains("kafka.options"), "a removed setting is rejected");
        let lease = |lease| on_kafka(&[("receipts.lease", lease), ("kafka.message_timeout", "10s")]);
        let problem = lease("15s");
        assert!(problem.contains("is 15s, and `kafka.message_timeout`"), "{problem}");
        assert!(problem.contains("must exceed the timeout by more than 5s"), "{problem}");
        assert_eq!(lease("16s"), "");
        let whole = [("kafka.sasl", "SCRAM-SHA-512"), ("kafka.sasl_username", "eva"), ("kafka.sasl_password", "x")];
        assert_eq!(on_kafka(&whole), "");
    }

    #[test]
    fn settings_that_contradict_each_other_are_named_together() {
        let loaded = with_flags(&[("limits.batch_bytes", "1KiB"), ("telemetry.level", "lud=er"), ("data", "")]);
        assert_eq!(loaded.findings.problems.len(), 3, "{:?}", loaded.findings);
        assert!(loaded.findings.problems[0].contains("`limits.batch_bytes` (--set limits.batch_bytes)"));
    }
}
