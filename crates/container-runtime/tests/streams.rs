//! Exec, attach, terminals, port-forward.

use std::time::Duration;

use cri::{AttachOptions, ExecOptions, Reader, RuntimeService, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{DEADLINE, Fixture, eventually};

crate::tests![
    exec_gives_output_and_exit_code,
    exec_reads_stdin,
    exec_on_a_terminal,
    exec_that_takes_too_long_is_killed,
    a_command_that_is_missing_is_an_error,
    attach_sees_output_and_writes_stdin,
    a_container_can_have_a_terminal,
    stdin_once_ends_with_the_first_attach,
    ports_are_forwarded_into_the_pod,
    large_output_is_complete,
];

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

async fn text_of(reader: Option<Reader>) -> String {
    let mut text = String::new();
    tokio::time::timeout(DEADLINE, reader.unwrap().read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

/// Reads until the text has come.
async fn read_until(reader: &mut Reader, wanted: &str) -> String {
    let mut text = String::new();
    let reading = async {
        let mut buffer = [0; 256];
        while !text.contains(wanted) {
            let count = reader.read(&mut buffer).await.unwrap();
            assert!(count > 0, "ended after {text:?}");
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    let outcome = tokio::time::timeout(DEADLINE, reading).await;
    assert!(outcome.is_ok(), "no {wanted:?} in {text:?}");
    text
}

async fn exec_gives_output_and_exit_code(fixture: &Fixture) {
    let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    assert_eq!(fixture.exec(&id, &["cat", "/etc/hostname"]).await, (0, "pod\n".into(), String::new()));
    assert_eq!(
        fixture.exec(&id, &["cat", "/etc/resolv.conf"]).await.1,
        "nameserver 10.0.0.10\nsearch test.local\noptions ndots:5\n"
    );
    assert_eq!(fixture.exec(&id, &["/kelson", "demo", "fail", "3"]).await.0, 3);
    let (code, stdout, stderr) = fixture.exec(&id, &["cat", "/none"]).await;
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("/none"), "{stderr}");
}

async fn exec_reads_stdin(fixture: &Fixture) {
    let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let options = ExecOptions { stdin: true, stdout: true, ..Default::default() };
    let mut session = fixture.runtime.exec(&id, &command(&["cat"]), options).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"through a pipe").await.unwrap();
    stdin.shutdown().await.unwrap();
    assert!(stdin.write_all(b"more").await.is_err());
    assert_eq!(text_of(session.stdout).await, "through a pipe");
    assert!(session.stderr.is_none() && session.resize.is_none());
    assert_eq!(session.exit.await.unwrap(), 0);
}

async fn exec_on_a_terminal(fixture: &Fixture) {
    let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let options = ExecOptions { tty: true, stdin: true, stdout: true, ..Default::default() };
    let session = fixture.runtime.exec(&id, &command(&["cat"]), options).await.unwrap();
    let (mut stdin, mut stdout) = (session.stdin.unwrap(), session.stdout.unwrap());
    session.resize.as_ref().unwrap().send(TerminalSize { width: 100, height: 40 }).await.unwrap();
    let listed = ExecOptions { tty: true, stdout: true, ..Default::default() };
    let other = fixture.runtime.exec(&id, &command(&["cat", "/proc/self/stat"]), listed).await.unwrap();
    let stat = text_of(other.stdout).await;
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    assert_ne!(fields[4], "0", "it has a controlling terminal: {stat}");
    assert_eq!(fields[2], fields[5], "it is in the terminal's foreground: {stat}");

    stdin.write_all(b"typed\n").await.unwrap();
    // Once as the terminal's echo, once from cat; with the terminal's line ends.
    read_until(&mut stdout, "typed\r\ntyped\r\n").await;
    stdin.write_all(&[4]).await.unwrap(); // end of input
    assert_eq!(session.exit.await.unwrap(), 0);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).await.unwrap();
}

async fn exec_that_takes_too_long_is_killed(fixture: &Fixture) {
    let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let error = fixture
        .runtime
        .exec_sync(&id, &command(&["sleep", "77"]), Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(matches!(error, cri::Error::DeadlineExceeded { .. }), "{error}");
    let is_alive = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.any(|line| line == b"sleep\x0077\0")
    };
    eventually("the command is killed", || !is_alive()).await;
}

async fn a_command_that_is_missing_is_an_error(fixture: &Fixture) {
    let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let error = fixture.runtime.exec_sync(&id, &command(&["bash"]), DEADLINE).await.unwrap_err();
    assert!(
        telemetry::chain(&error).to_string().contains("\"bash\" in $PATH"),
        "{}",
        telemetry::chain(&error)
    );
    assert!(fixture.runtime.exec_sync(&id, &[], DEADLINE).await.is_err());
    assert!(
        fixture.runtime.exec_sync("none", &command(&["true"]), DEADLINE).await.unwrap_err().is_not_found()
    );
    fixture.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    let error = fixture.runtime.exec_sync(&id, &command(&["true"]), DEADLINE).await.unwrap_err();
    assert!(error.to_string().contains("not running"), "{error}");
}

async fn attach_sees_output_and_writes_stdin(fixture: &Fixture) {
    let mut config = fixture.container_config(&["cat"]);
    config.stdin = true;
    let (_, id) = fixture.run(&config).await;
    let options = AttachOptions { stdin: true, stdout: true, stderr: true };
    let mut one = fixture.runtime.attach(&id, options).await.unwrap();
    let mut two = fixture.runtime.attach(&id, options).await.unwrap();
    one.stdin.as_mut().unwrap().write_all(b"to all\n").await.unwrap();
    for session in [&mut one, &mut two] {
        read_until(session.stdout.as_mut().unwrap(), "to all\n").await;
    }
    drop(two);
    one.stdin.as_mut().unwrap().write_all(b"to one\n").await.unwrap();
    read_until(one.stdout.as_mut().unwrap(), "to one\n").await;
    fixture.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    assert_eq!(text_of(one.stdout).await, "");
    assert_eq!(one.exit.await.unwrap(), 137);
    assert_eq!(fixture.log_text("main.log"), "to all\nto one\n");
}

async fn a_container_can_have_a_terminal(fixture: &Fixture) {
    let mut config = fixture.container_config(&["cat"]);
    config.stdin = true;
    config.tty = true;
    let (_, id) = fixture.run(&config).await;
    let options = AttachOptions { stdin: true, stdout: true, stderr: true };
    let session = fixture.runtime.attach(&id, options).await.unwrap();
    assert!(session.stderr.is_none() && session.resize.is_some());
    let (mut stdin, mut stdout) = (session.stdin.unwrap(), session.stdout.unwrap());
    stdin.write_all(b"hello\n").await.unwrap();
    read_until(&mut stdout, "hello\r\nhello\r\n").await;
    stdin.write_all(&[4]).await.unwrap();
    assert_eq!(session.exit.await.unwrap(), 0);
    assert_eq!(fixture.log_text("main.log").lines().next(), Some("hello"));
}

async fn stdin_once_ends_with_the_first_attach(fixture: &Fixture) {
    let mut config = fixture.container_config(&["cat"]);
    config.stdin = true;
    config.stdin_once = true;
    let (_, id) = fixture.run(&config).await;
    let mut session =
        fixture.runtime.attach(&id, AttachOptions { stdin: true, ..Default::default() }).await.unwrap();
    session.stdin.as_mut().unwrap().write_all(b"once\n").await.unwrap();
    session.stdin.as_mut().unwrap().shutdown().await.unwrap();
    assert_eq!(fixture.ended(&id).await.exit_code, 0);
    assert_eq!(fixture.log_text("main.log"), "once\n");
}

async fn ports_are_forwarded_into_the_pod(fixture: &Fixture) {
    let (sandbox, id) = fixture.run(&fixture.container_config(&["serve", "--port", "80"])).await;
    eventually("the server is up", || fixture.log_text("main.log").contains("serves on port 80")).await;
    let mut connection = fixture.runtime.port_forward(&sandbox, 80).await.unwrap();
    connection.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\npod\n"), "{text}");
    let error = fixture.runtime.port_forward(&sandbox, 81).await.err().unwrap();
    assert!(telemetry::chain(&error).to_string().contains("refused"));
    assert_eq!(fixture.exec(&id, &["wget", "http://localhost/healthz"]).await.1, "ok\n");
}

async fn large_output_is_complete(fixture: &Fixture) {
    let file = fixture.directory.path().join("large");
    let lines: String = (0..200_000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(&file, &lines).unwrap();
    let mut config = fixture.container_config(&["cat", "/large"]);
    config.mounts.push(cri::Mount {
        container_path: "/large".into(),
        host_path: file,
        readonly: true,
        ..Default::default()
    });
    let (sandbox, id) = fixture.run(&config).await;
    assert_eq!(fixture.ended(&id).await.exit_code, 0);
    assert!(fixture.log_text("main.log") == lines, "the log differs");
    config.args = command(&["sleep", "infinity"]);
    let id = fixture.run_in(&sandbox, &config).await;
    assert!(fixture.exec(&id, &["cat", "/large"]).await.1 == lines, "the output differs");
}
