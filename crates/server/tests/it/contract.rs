//! The API document and outside tools: a linter accepts it; generated clients publish, read, hold and push; the answers to generated
//! requests conform to it.
//!
//! The tools are in the folder that `WHIMBREL_TEST_CONTRACT` names; `scripts/services up contract` installs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::{Server, stderr_of, stdout_of};
use super::server_life::get;
use super::services::skip;

/// Generated requests for each operation and phase. With this number the run takes well under a minute.
const EXAMPLES_MAX: &str = "3";
/// A fixed seed, so that each run sends the same requests.
const SEED: &str = "1";
/// Streams, whose answers never end. Other tests read them.
const STREAMS: &str = "/v1/connect|/tail$|/events$";
/// A check of schemathesis that is disabled for some operations.
struct LeftOut {
    check: &'static str,
    reason: &'static str,
    operations: &'static [&'static str],
}

/// Everywhere else a generated request that conforms to the document is accepted, and any other is rejected.
const CHECKS_LEFT_OUT: [LeftOut; 7] = [
    LeftOut {
        check: "positive_data_acceptance",
        reason: "a valid cursor comes from an earlier answer",
        operations: &[
            "GET /v1/holds",
            "GET /v1/messages",
            "GET /v1/notices/dead-letters",
            "GET /v1/push/dead-letters",
            "GET /v1/subscriptions/{name}/dead-letters",
        ],
    },
    LeftOut {
        check: "positive_data_acceptance",
        reason: "a pattern does not express the bounds of a duration or a time",
        operations: &[
            "GET /v1/holds/count",
            "GET /v1/stats/topics/{topic}",
            "PUT /v1/platforms/{platform}",
            "PUT /v1/topics/{topic}",
        ],
    },
    LeftOut {
        check: "positive_data_acceptance",
        reason: "the schema does not express which fields need or exclude each other",
        operations: &[
            "GET /v1/topics/{topic}/messages",
            "POST /v1/topics/{topic}/batch",
            "POST /v1/topics/{topic}/messages",
            "POST /v1/users/batch",
            "POST /v1/users/messages",
            "POST /v1/users/{uid}/kick",
            "POST /v1/users/{uid}/messages",
            "PUT /v1/subscriptions/{name}",
            "PUT /v1/users/{uid}/devices/{device}",
        ],
    },
    LeftOut {
        check: "negative_data_rejection",
        reason: "the server takes `null` and an empty parameter for absent",
        operations: &[
            "GET /v1/subscriptions",
            "POST /v1/notices/redrive",
            "POST /v1/push/redrive",
            "POST /v1/topics/{topic}/batch",
            "POST /v1/users/batch",
            "POST /v1/users/messages",
            "POST /v1/users/{uid}/messages",
        ],
    },
    LeftOut {
        check: "negative_data_rejection",
        reason: "`after` may also be above the range of `int64`",
        operations: &["GET /v1/users/{uid}/inbox"],
    },
    LeftOut {
        check: "negative_data_rejection",
        reason: "the endpoints of other systems answer 200 with an error number of their own",
        operations: &[
            "POST /dq/acceptMsg",
            "POST /produce",
            "POST /sorakaq/msg/addTime",
            "POST /sorakaq/msg/cancel",
            "POST /sorakaq/msg/submit",
        ],
    },
    LeftOut {
        check: "missing_required_header",
        reason: "the endpoint of MqProxy answers 200 with an error number of its own",
        operations: &["POST /produce"],
    },
];

/// The configuration of schemathesis.
fn request_settings() -> String {
    // Long polls would wait for messages that never arrive.
    let mut settings = "[parameters]\n\"query.wait\" = \"10ms\"\n".to_owned();
    for LeftOut { check, reason, operations } in CHECKS_LEFT_OUT {
        for operation in operations {
            settings.push_str(&format!(
                "\n# {reason}\n[[operations]]\ninclude-name = \"{operation}\"\nchecks.{check}.enabled = false\n"
            ));
        }
    }
    settings
}

fn tools() -> Option<PathBuf> {
    (!skip(&["WHIMBREL_TEST_CONTRACT"])).then(|| std::env::var_os("WHIMBREL_TEST_CONTRACT").unwrap().into())
}

/// A server, and its API document in a folder.
fn site() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let answer = get(&server, "/openapi.json");
    std::fs::write(folder.path().join("openapi.json"), answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    (server, folder)
}

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients").join(name)
}

/// Runs a tool in that folder and returns its output.
#[track_caller]
fn run(folder: &Path, program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).current_dir(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}: {} {}", program.display(), stdout_of(&output), stderr_of(&output));
    stdout_of(&output)
}

#[test]
fn a_linter_accepts_the_document() {
    let Some(tools) = tools() else { return };
    let (_server, folder) = site();
    run(folder.path(), &tools.join("node/node_modules/.bin/redocly"), &["lint", "openapi.json"]);
}

#[test]
fn a_generated_client_in_typescript_publishes_reads_holds_and_pushes() {
    let Some(tools) = tools() else { return };
    let (server, folder) = site();
    let node = tools.join("node/node_modules");
    std::os::unix::fs::symlink(&node, folder.path().join("node_modules")).unwrap();
    std::fs::copy(client("contract.ts"), folder.path().join("contract.mts")).unwrap();
    run(folder.path(), &node.join(".bin/openapi-typescript"), &["openapi.json", "-o", "schema.d.ts"]);
    let mut compile = vec!["contract.mts", "--strict", "--target", "es2022", "--module", "preserve"];
    compile.extend(["--moduleResolution", "bundler", "--skipLibCheck"]);
    run(folder.path(), &node.join(".bin/tsc"), &compile);
    let printed = run(folder.path(), Path::new("node"), &["contract.mjs", &server.url]);
    assert_eq!(printed, "hello held hi\n");
}

#[test]
fn a_generated_client_in_python_publishes_reads_holds_and_pushes() {
    let Some(tools) = tools() else { return };
    let (server, folder) = site();
    let generate = ["generate", "--path", "openapi.json", "--meta", "none", "--output-path", "whimbrel_api"];
    run(folder.path(), &tools.join("python/bin/openapi-python-client"), &generate);
    std::fs::copy(client("contract.py"), folder.path().join("contract.py")).unwrap();
    let printed = run(folder.path(), &tools.join("python/bin/python"), &["contract.py", &server.url]);
    assert_eq!(printed, "hello held hi\n");
}

#[test]
fn answers_to_generated_requests_conform_to_the_document() {
    let Some(tools) = tools() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Generated subscriptions name foreign endpoints.
    let server = Server::start(folder.path(), &["--set", "callbacks.deny=0.0.0.0/0,::/0"]);
    let document = format!("{}/openapi.json", server.url);
    std::fs::write(folder.path().join("schemathesis.toml"), request_settings()).unwrap();
    let mut arguments = vec!["run", &document, "--phases", "examples,coverage,fuzzing", "--workers", "1"];
    arguments.extend(["--max-examples", EXAMPLES_MAX, "--seed", SEED, "--generation-database", "none"]);
    arguments.extend(["--exclude-path-regex", STREAMS, "--no-color"]);
    let printed = run(folder.path(), &tools.join("python/bin/schemathesis"), &arguments);
    assert!(printed.contains(" generated, "), "{printed}");
}
