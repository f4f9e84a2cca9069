//! TLS, mutual TLS and SASL against a real broker with a listener for each, and the errors of a client that does not fit its listener.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use whimbrel_engines::conformance::log::{entry, new_spec, text_of};
use whimbrel_engines::kafka::settings::{Sasl, SaslMechanism, Tls, TlsIdentity};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings, KafkaStartError};
use whimbrel_engines::needs_servers;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{CommitOutcome, Log as _, LogTopics as _, ReadLimits};

use crate::broker::{Extras, Listener, OwnBroker};
use crate::services::free_address;
use crate::{ADDRESS, kept_events};

const USER: &str = "eva";
const PASSWORD: &str = "right-Secret-4711";
const WRONG_PASSWORD: &str = "wrong-Secret-0815";
const MECHANISMS: [SaslMechanism; 3] = [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512];
/// The time for which a start waits for the broker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// The additional time of an answer on a busy machine.
const SLACK: Duration = Duration::from_secs(3);
/// The time for which a read waits for committed records.
const READ_WAIT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_written_and_read_with_tls() {
    needs_servers!(ADDRESS);
    let secured = Secured::get();
    write_and_read("TLS", secured.settings(&secured.tls, Some(secured.trusting()), None)).await;
    let with_identity = Tls { identity: Some(secured.identity("client")), ..secured.trusting() };
    write_and_read("TLS with a certificate that the broker does not ask for", {
        secured.settings(&secured.tls, Some(with_identity.clone()), None)
    })
    .await;
    write_and_read("mutual TLS", secured.settings(&secured.mutual_tls, Some(with_identity), None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_written_and_read_with_sasl() {
    needs_servers!(ADDRESS);
    let secured = Secured::get();
    for mechanism in MECHANISMS {
        let listener = secured.sasl_listener(mechanism);
        write_and_read(mechanism.name(), secured.settings(listener, None, Some(sasl(mechanism, PASSWORD)))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_written_and_read_with_sasl_over_tls() {
    needs_servers!(ADDRESS);
    let secured = Secured::get();
    for mechanism in MECHANISMS {
        let settings = secured.settings(&secured.sasl_tls, Some(secured.trusting()), Some(sasl(mechanism, PASSWORD)));
        write_and_read(&format!("{} over TLS", mechanism.name()), settings).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_certificate_fails_within_the_timeout_and_is_named() {
    needs_servers!(ADDRESS);
    let secured = Secured::get();
    let foreign_ca = Tls { ca_file: Some(secured.file("foreign-ca.pem")), identity: None };
    let foreign_identity = Tls { identity: Some(secured.identity("foreign-client")), ..secured.trusting() };
    let by_name = secured.tls.replace("127.0.0.1", "localhost");
    assert_refused(vec![
        Refusal::new("a CA that did not sign the broker's certificate", &["TLS", "certificate", "UnknownIssuer"], {
            secured.settings(&secured.tls, Some(foreign_ca), None)
        }),
        Refusal::new("a certificate for another host", &["TLS", "certificate", "localhost"], {
            secured.settings(&by_name, Some(secured.trusting()), None)
        }),
        Refusal::new("no client certificate where the broker requires one", &["certificate"], {
            secured.settings(&secured.mutual_tls, Some(secured.trusting()), None)
        }),
        Refusal::new("a client certificate that the broker does not trust", &["certificate"], {
            secured.settings(&secured.mutual_tls, Some(foreign_identity), None)
        }),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_fail_in_time_and_are_named_without_the_password() {
    needs_servers!(ADDRESS);
    let secured = Secured::get();
    let mut refusals = Vec::new();
    for mechanism in MECHANISMS {
        let (name, listener) = (mechanism.name(), secured.sasl_listener(mechanism));
        let wrong_password = sasl(mechanism, WRONG_PASSWORD);
        let unknown_user = Sasl { username: "mallory".to_owned(), ..sasl(mechanism, PASSWORD) };
        refusals.push(Refusal::new(format!("{name} with a wrong password"), &["SASL", "credentials"], {
            secured.settings(listener, None, Some(wrong_password.clone()))
        }));
        refusals.push(Refusal::new(format!("{name} over TLS with a wrong password"), &["SASL", "credentials"], {
            secured.settings(&secured.sasl_tls, Some(secured.trusting()), Some(wrong_password))
        }));
        refusals.push(Refusal::new(format!("{name} with an unknown user"), &["SASL", "credentials"], {
            secured.settings(listener, None, Some(unknown_user))
        }));
    }
    assert_refused(refusals).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mechanism_that_the_listener_lacks_fails_in_time_and_the_error_lists_those_it_has() {
    needs_servers!(ADDRESS);
    let secured = Secured::get();
    let with = |listener: &str, mechanism| secured.settings(listener, None, Some(sasl(mechanism, PASSWORD)));
    assert_refused(vec![
        Refusal::new("PLAIN on a SCRAM listener", &["SASL PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], {
            with(&secured.scram, SaslMechanism::Plain)
        }),
        Refusal::new("SCRAM-SHA-256 on a PLAIN listener", &["SASL SCRAM-SHA-256", "PLAIN"], {
            with(&secured.plain, SaslMechanism::ScramSha256)
        }),
        Refusal::new("PLAIN on a listener without SASL", &["SASL"], {
            with(&secured.broker.address, SaslMechanism::Plain)
        }),
        Refusal::new("no SASL on a PLAIN listener", &["SASL"], secured.settings(&secured.plain, None, None)),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_tls_on_one_side_only_fails_in_time_and_names_tls() {
    needs_servers!(ADDRESS);
    let secured = Secured::get();
    assert_refused(vec![
        Refusal::new("a plain client on a TLS listener", &["TLS"], secured.settings(&secured.tls, None, None)),
        Refusal::new("a plain client on a mutual TLS listener", &["TLS"], {
            secured.settings(&secured.mutual_tls, None, None)
        }),
        Refusal::new("SASL without TLS on a SASL_SSL listener", &["TLS"], {
            secured.settings(&secured.sasl_tls, None, Some(sasl(SaslMechanism::Plain, PASSWORD)))
        }),
        Refusal::new("a TLS client on a plain listener", &["TLS"], {
            secured.settings(&secured.broker.address, Some(secured.trusting()), None)
        }),
        Refusal::new("a TLS client on a SASL listener without TLS", &["TLS"], {
            secured.settings(&secured.plain, Some(secured.trusting()), Some(sasl(SaslMechanism::Plain, PASSWORD)))
        }),
    ])
    .await;
}

/// Creates a topic, appends, commits under a fence, and reads both back.
async fn write_and_read(name: &str, settings: KafkaSettings) {
    let (events, kept) = kept_events();
    let log = KafkaLog::connect(settings, events).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let spec = new_spec(1);
    log.create(&spec).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let partition = PartitionId::new(spec.number, 0);
    assert_eq!(log.append(vec![entry(partition, "appended")]).await, [Ok(0)], "{name}");
    let fence = log.fence(&spec.name, 1).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let outcome = log.commit(&fence, vec![entry(partition, "committed")]).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{name}: {outcome:?}");
    let limits = ReadLimits { max_records: 10, max_bytes: 1 << 20, wait: READ_WAIT };
    let mut texts = Vec::new();
    let mut next = 0;
    while texts.len() < 2 {
        let batch = log.read(partition, next, limits).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(batch.next > next, "{name}: no record behind {texts:?}");
        next = batch.next;
        texts.extend(batch.records.iter().map(text_of));
    }
    assert_eq!(texts, ["appended", "committed"], "{name}");
    assert_no_password(name, &format!("{:?}", kept.lock().unwrap()));
    assert_no_password(name, &LogLines::all());
}

/// Settings that the broker must refuse.
struct Refusal {
    name: String,
    /// Parts of the error, in any case of letters.
    named: &'static [&'static str],
    settings: KafkaSettings,
}

impl Refusal {
    fn new(name: impl Into<String>, named: &'static [&'static str], settings: KafkaSettings) -> Self {
        Self { name: name.into(), named, settings }
    }

    /// The difference from the expected error, if there is one.
    async fn check(self) -> Option<String> {
        let Self { name, named, settings } = self;
        let began = Instant::now();
        let outcome = KafkaLog::connect(settings, Arc::new(|_| {})).await;
        let took = began.elapsed();
        let Err(error) = outcome else { return Some(format!("{name}: the connection succeeds")) };
        let text = error.to_string();
        assert_no_password(&name, &format!("{text} {error:?}"));
        println!("{name}: {text}");
        if took > REQUEST_TIMEOUT + SLACK {
            return Some(format!("{name}: fails after {took:?}"));
        }
        // The text around the reason is the same for every cause.
        let KafkaStartError::Unreachable { reason, .. } = error else { return Some(format!("{name}: {error:?}")) };
        let reason = reason.to_lowercase();
        let missing: Vec<_> = named.iter().filter(|part| !reason.contains(&part.to_lowercase())).collect();
        (!missing.is_empty()).then(|| format!("{name}: the reason does not name {missing:?}: {reason}"))
    }
}

async fn assert_refused(refusals: Vec<Refusal>) {
    let wrong: Vec<String> = join_all(refusals.into_iter().map(Refusal::check)).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let lines = LogLines::all();
    assert!(lines.contains("no Kafka broker answers"), "the log lines of failed starts are checked too");
    assert_no_password("a log line", &lines);
}

fn assert_no_password(name: &str, text: &str) {
    let line = text.lines().find(|line| line.contains(PASSWORD) || line.contains(WRONG_PASSWORD));
    assert!(line.is_none(), "{name}: a password is printed: {line:?}");
}

fn sasl(mechanism: SaslMechanism, password: &str) -> Sasl {
    Sasl { mechanism, username: USER.to_owned(), password: password.to_owned() }
}

/// A broker with a listener for each kind of security, shared by the tests that run at the same time.
struct Secured {
    broker: OwnBroker,
    certificates: TempDir,
    tls: String,
    mutual_tls: String,
    plain: String,
    scram: String,
    sasl_tls: String,
}

impl Secured {
    /// The broker of the tests that run now; the first one starts it, the last one stops it.
    fn get() -> Arc<Self> {
        static SHARED: Mutex<Weak<Secured>> = Mutex::new(Weak::new());
        LogLines::collect();
        let mut shared: MutexGuard<'_, _> = SHARED.lock().expect("no start of the broker has failed");
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(tokio::task::block_in_place(Self::start));
            *shared = Arc::downgrade(&started);
            started
        })
    }

    fn start() -> Self {
        let certificates = tempfile::tempdir().expect("a folder for the certificates");
        make_certificates(certificates.path());
        let [tls, mutual_tls, plain, scram, sasl_tls] = [(); 5].map(|()| free_address());
        let listener = |name, protocol, address: &String| Listener { name, protocol, address: address.clone() };
        let listeners = vec![
            listener("TLS", "SSL", &tls),
            listener("MUTUAL_TLS", "SSL", &mutual_tls),
            listener("PLAIN", "SASL_PLAINTEXT", &plain),
            listener("SCRAM", "SASL_PLAINTEXT", &scram),
            listener("SASL_TLS", "SASL_SSL", &sasl_tls),
        ];
        let mut properties = vec![
            "ssl.keystore.type=PEM".to_owned(),
            format!("ssl.keystore.location={}", certificates.path().join("broker.pem").display()),
            "ssl.truststore.type=PEM".to_owned(),
            format!("ssl.truststore.location={}", certificates.path().join("ca.pem").display()),
            "listener.name.mutual_tls.ssl.client.auth=required".to_owned(),
            "listener.name.plain.sasl.enabled.mechanisms=PLAIN".to_owned(),
            "listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512".to_owned(),
            "listener.name.sasl_tls.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512".to_owned(),
        ];
        for listener in ["plain", "sasl_tls"] {
            let module = "org.apache.kafka.common.security.plain.PlainLoginModule";
            let users = format!("required user_{USER}=\"{PASSWORD}\";");
            properties.push(format!("listener.name.{listener}.plain.sasl.jaas.config={module} {users}"));
        }
        for (listener, mechanism) in [("scram", "256"), ("scram", "512"), ("sasl_tls", "256"), ("sasl_tls", "512")] {
            let module = "org.apache.kafka.common.security.scram.ScramLoginModule";
            let option = format!("listener.name.{listener}.scram-sha-{mechanism}.sasl.jaas.config");
            properties.push(format!("{option}={module} required;"));
        }
        let user = |mechanism| format!("SCRAM-SHA-{mechanism}=[name={USER},password={PASSWORD}]");
        let format_arguments = ["256", "512"].into_iter().flat_map(|each| ["--add-scram".to_owned(), user(each)]);
        let extras = Extras { listeners, properties, format_arguments: format_arguments.collect() };
        Self { broker: OwnBroker::start_with(extras), certificates, tls, mutual_tls, plain, scram, sasl_tls }
    }

    fn settings(&self, address: &str, tls: Option<Tls>, sasl: Option<Sasl>) -> KafkaSettings {
        KafkaSettings { tls, sasl, request_timeout: REQUEST_TIMEOUT, ..KafkaSettings::new(address) }
    }

    fn sasl_listener(&self, mechanism: SaslMechanism) -> &str {
        match mechanism {
            SaslMechanism::Plain => &self.plain,
            SaslMechanism::ScramSha256 | SaslMechanism::ScramSha512 => &self.scram,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.certificates.path().join(name)
    }

    /// TLS that trusts the broker's certificate.
    fn trusting(&self) -> Tls {
        Tls { ca_file: Some(self.file("ca.pem")), identity: None }
    }

    fn identity(&self, name: &str) -> TlsIdentity {
        TlsIdentity {
            certificate_file: self.file(&format!("{name}.pem")),
            key_file: self.file(&format!("{name}-key.pem")),
        }
    }
}

/// Writes the CA of the broker and its clients with their certificates, and another CA with a client.
fn make_certificates(folder: &Path) {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("the folder can be written");
    for (prefix, subjects) in [("", &["broker", "client"][..]), ("foreign-", &["client"])] {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::new(Vec::new()).expect("a CA has no host");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, format!("{prefix}ca"));
        write(&format!("{prefix}ca.pem"), &params.self_signed(&key).expect("the CA can sign").pem());
        let issuer = Issuer::new(params, key);
        for subject in subjects {
            let key = KeyPair::generate().expect("a key can be made");
            let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address is a host");
            params.distinguished_name.push(DnType::CommonName, *subject);
            let certificate = params.signed_by(&key, &issuer).expect("the CA can sign").pem();
            write(&format!("{prefix}{subject}-key.pem"), &key.serialize_pem());
            // Kafka requires the key and its certificate in one file.
            let both = if *subject == "broker" { key.serialize_pem() + &certificate } else { certificate };
            write(&format!("{prefix}{subject}.pem"), &both);
        }
    }
}

/// The log lines of this process, of every level and every thread.
struct LogLines;

static LOG_LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

impl LogLines {
    fn collect() {
        let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(|| Self);
        // The second test finds the subscriber of the first one.
        let _ = lines.try_init();
    }

    fn all() -> String {
        String::from_utf8_lossy(&LOG_LINES.lock().expect("no writer panics")).into_owned()
    }
}

impl std::io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG_LINES.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
