//! The ways out of a container that others found in ten years of runtimes, tried on ours. Each names its advisory.
//!
//! The attackers are roles of the test binary, which is also the program of the demo image ([`attack`]).

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;

use container_runtime::image::import::import;
use cri::{ContainerConfig, Mount, ProfileType, RuntimeService, SecurityProfile};
use serde_json::json;

use crate::fixture::{Fixture, eventually};
use crate::images::Entry::{self, Directory, Link};
use crate::images::{docker_archive, layer, place, store, write_tar};

/// The word that makes the test binary an attacker inside a container.
pub const ATTACK: &str = "attack-process";

crate::tests![
    an_exec_cannot_be_looked_into,
    our_program_cannot_be_overwritten,
    no_descriptor_leaks,
    links_at_kernel_directories_lead_nowhere,
    masks_cannot_be_redirected,
    the_console_cannot_be_redirected,
    nothing_is_mounted_inside_proc,
    release_agents_cannot_be_set,
];

/// Inside the container: what to try.
pub fn attack(way: &str) -> ExitCode {
    match way {
        "look-into-exec" => look_into_others(),
        "overwrite-exe" => overwrite_own_program(),
        "list-descriptors" => {
            for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
                let target = fs::read_link(entry.path()).unwrap_or_default();
                println!("{} {}", entry.file_name().to_string_lossy(), target.display());
            }
        }
        "release-agent" => set_release_agent(),
        way => println!("no such way: {way}"),
    }
    ExitCode::SUCCESS
}

/// Looks for processes that are on their way into the container and still are the shim's.
fn look_into_others() {
    let own = std::process::id().to_string();
    println!("watching");
    loop {
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.bytes().all(|byte| byte.is_ascii_digit()) || name == own {
                continue;
            }
            let is_ours =
                || fs::read_to_string(entry.path().join("comm")).unwrap_or_default() == "kelson-shim\n";
            if !is_ours() {
                continue;
            }
            let has_memory = || {
                let pages = fs::read_to_string(entry.path().join("statm")).unwrap_or_default();
                pages.split(' ').next().is_some_and(|size| !matches!(size, "" | "0"))
            };
            let mut seen = Vec::new();
            for entry in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
                seen.extend(fs::read_link(entry.path())); // the numbers can be listed, no more
            }
            seen.extend(fs::read_dir(entry.path().join("root")).map(|_| "root".into()));
            for file in ["environ", "mem", "maps"].map(|file| entry.path().join(file)) {
                seen.extend(File::open(&file).map(|_| file));
            }
            // Still before its exec, so what was opened was the shim's; and still with a memory: of a process that has
            // just given up its own, the kernel lets anyone open the files about it, which say nothing.
            if !seen.is_empty() && is_ours() && has_memory() {
                println!("looked into {seen:?}");
            }
            println!("met one");
        }
    }
}

fn overwrite_own_program() {
    let read = File::open("/proc/self/exe").unwrap();
    let mode = read.metadata().unwrap().permissions();
    for path in ["/proc/self/exe".to_owned(), format!("/proc/self/fd/{}", read.as_raw_fd())] {
        // Truncating and changing the mode, because plain opening says "busy", which it is only while somebody runs it.
        let tries = [
            File::options().write(true).truncate(true).open(&path).map(drop),
            fs::set_permissions(&path, mode.clone()),
        ];
        for tried in tries {
            println!("{}", tried.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
        }
    }
}

fn set_release_agent() {
    use rustix::mount::MountFlags;
    let in_vain = |what: &str, tried: std::io::Result<()>| match tried {
        Ok(()) => println!("DONE: {what}"),
        Err(error) => println!("{what}: {error}"),
    };
    let mount = |place: &str| {
        fs::create_dir_all(place)?;
        Ok(rustix::mount::mount("none", place, "cgroup", MountFlags::empty(), Some(c"memory"))?)
    };
    in_vain("mount", mount("/tmp/one"));
    let flags = rustix::thread::UnshareFlags::NEWUSER
        | rustix::thread::UnshareFlags::NEWNS
        | rustix::thread::UnshareFlags::NEWCGROUP;
    in_vain("unshare", unshare(flags));
    in_vain("mount in new namespaces", mount("/tmp/two"));
    let mut places = vec!["/tmp/one".into(), "/tmp/two".into(), "/sys/fs/cgroup".into()];
    places.extend(fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path()));
    for place in places {
        let agent = Path::new(&place).join("release_agent");
        in_vain("write", File::options().write(true).open(agent).and_then(|mut file| file.write_all(b"/x")));
    }
}

#[allow(deprecated)] // its successor is unsafe because of descriptors, which are not asked for here
fn unshare(flags: rustix::thread::UnshareFlags) -> std::io::Result<()> {
    Ok(rustix::thread::unshare(flags)?)
}

/// A container whose program is the attacker.
fn attacker(fixture: &Fixture, way: &str) -> ContainerConfig {
    let mut config = fixture.container_config(&[ATTACK, way]);
    config.command = vec!["/kelson".into()];
    config
}

/// CVE-2016-9962: between joining the container and exec, a process of the runtime can be traced and its descriptors taken.
async fn an_exec_cannot_be_looked_into(fixture: &Fixture) {
    let mut config = attacker(fixture, "look-into-exec");
    // Going through all of it makes the instant before exec long.
    let path = "/bin:".repeat(20_000);
    config.envs = vec![cri::KeyValue { key: "PATH".into(), value: path.into() }];
    let (_, id) = fixture.run(&config).await;
    eventually("the attacker runs", || fixture.log_text("main.log").contains("watching")).await;
    // How many a busy machine lets slip by is chance; the deadline is not.
    let deadline = std::time::Instant::now() + crate::fixture::DEADLINE;
    while std::time::Instant::now() < deadline {
        let command = ["no-such-program".to_owned()];
        assert!(fixture.runtime.exec_sync(&id, &command, crate::fixture::DEADLINE).await.is_err());
        if fixture.log_text("main.log").contains("met one") {
            break;
        }
    }
    let log = fixture.log_text("main.log");
    assert!(log.contains("met one"), "the attacker never saw a process before its exec");
    assert!(!log.contains("looked into"), "{log}");
}

/// CVE-2019-5736: a container that runs /proc/self/exe has the runtime's own program in its hands.
async fn our_program_cannot_be_overwritten(fixture: &Fixture) {
    let mut config = attacker(fixture, "overwrite-exe");
    config.command = vec!["/proc/self/exe".into()];
    config.linux.security_context.privileged = true;
    let (status, log) = fixture.outcome(&config).await;
    assert_eq!(status.exit_code, 0, "{log}");
    assert_eq!(log.lines().count(), 4, "{log}");
    assert!(log.lines().all(|line| line.contains("Read-only file system")), "{log}");
}

/// CVE-2024-21626: a descriptor of the host that is still open, also as the working directory.
async fn no_descriptor_leaks(fixture: &Fixture) {
    let (status, log) = fixture.outcome(&attacker(fixture, "list-descriptors")).await;
    assert_eq!(status.exit_code, 0, "{log}");
    let listed = |log: &str| log.lines().filter(|line| !line.contains("/proc/")).count();
    assert_eq!(listed(&log), 3, "{log}");
    let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let (_, log, _) = fixture.exec(&id, &["/kelson", ATTACK, "list-descriptors"]).await;
    assert_eq!(listed(&log), 3, "{log}");

    let sandbox = fixture.sandbox().await;
    for number in 3..24 {
        let mut config = fixture.container_config(&["cat", "/proc/self/cwd/etc/passwd"]);
        config.working_dir = format!("/proc/self/fd/{number}");
        let sandbox_config = fixture.sandbox_config("pod");
        let id = fixture.runtime.create_container(&sandbox, &config, &sandbox_config).await.unwrap();
        assert!(fixture.runtime.start_container(&id).await.is_err(), "in descriptor {number}");
    }
}

/// Runs the demo's program in an image that has these entries on top.
async fn start_on(
    fixture: &Fixture,
    entries: &[Entry<'_>],
    change: impl FnOnce(&mut ContainerConfig),
) -> Result<String, String> {
    let binary = fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut program = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(binary.len() as u64);
    header.set_mode(0o755);
    program.append_data(&mut header, "sleep", &binary[..]).unwrap();
    let layers = [program.into_inner().unwrap(), layer(entries)];
    let files = docker_archive(&layers, json!({"Entrypoint": ["/sleep", "infinity"]}), &["hostile:1"]);
    import(store(fixture), &write_tar(place(fixture), "hostile.tar", &files, false), None).unwrap();
    let mut config = fixture.container_config(&[]);
    config.image = "hostile:1".into();
    change(&mut config);
    let sandbox = fixture.sandbox().await;
    let sandbox_config = fixture.sandbox_config("pod");
    let id = fixture.runtime.create_container(&sandbox, &config, &sandbox_config).await.unwrap();
    let started = fixture.runtime.start_container(&id).await;
    started.map(|()| id).map_err(|error| telemetry::chain(&error).to_string())
}

/// CVE-2019-19921 and 2023-28642, and an image's `dev` that made links appear on the host.
async fn links_at_kernel_directories_lead_nowhere(fixture: &Fixture) {
    let victim = place(fixture).join("victim");
    fs::create_dir(&victim).unwrap();
    let target = victim.to_string_lossy();
    for name in ["dev", "proc", "sys"] {
        for target in [&*target, "/", "../../../../../../tmp"] {
            let refused = start_on(fixture, &[Link(name, target)], |_| {}).await.unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
    }
    // The pod's own files are mounted in /etc, wherever inside that is.
    start_on(fixture, &[Link("etc", &target)], |_| {}).await.unwrap();
    start_on(
        fixture,
        &[Directory("dev", 0o755), Link("dev/pts", &target), Link("dev/null", &target)],
        |_| {},
    )
    .await
    .unwrap();
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
}

/// CVE-2025-31133: /dev/null in the container is a link, so that what should be hidden is shown or what it leads to mounted.
async fn masks_cannot_be_redirected(fixture: &Fixture) {
    let volume = place(fixture).join("volume");
    fs::create_dir(&volume).unwrap();
    std::os::unix::fs::symlink("/proc/sys/kernel/core_pattern", volume.join("null")).unwrap();
    let mask = |config: &mut ContainerConfig| {
        config.linux.security_context.masked_paths = vec!["/proc/keys".into(), "/proc/scsi".into()];
    };
    let id = start_on(fixture, &[Link("dev/null", "/proc/sys/kernel/core_pattern")], mask).await.unwrap();
    assert_eq!(hidden(fixture, &id).await, 0);
    let id = start_on(fixture, &[], |config| {
        mask(config);
        config.mounts =
            vec![Mount { host_path: volume, container_path: "/dev".into(), ..Default::default() }];
    })
    .await
    .unwrap();
    assert_eq!(hidden(fixture, &id).await, 0);
}

/// How many bytes a masked file shows.
async fn hidden(fixture: &Fixture, id: &str) -> usize {
    let pid = fixture.runtime.container_status(id).await.unwrap().pid.unwrap();
    fs::read(format!("/proc/{pid}/root/proc/keys")).unwrap().len()
}

/// CVE-2025-52565: what is bound to /dev/console lands elsewhere.
async fn the_console_cannot_be_redirected(fixture: &Fixture) {
    let volume = place(fixture).join("volume");
    fs::create_dir_all(volume.join("pts")).unwrap();
    std::os::unix::fs::symlink("/proc/sys/kernel/core_pattern", volume.join("console")).unwrap();
    let terminal = |config: &mut ContainerConfig| config.tty = true;
    start_on(fixture, &[Link("dev/console", "/proc/sys/kernel/core_pattern")], terminal).await.unwrap();
    // A terminal that is none is neither followed nor waited for.
    for hostile in ["/proc/sys/kernel/core_pattern", "fifo"] {
        let ptmx = volume.join("pts/ptmx");
        let _ = fs::remove_file(&ptmx);
        if hostile == "fifo" {
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            rustix::fs::mknodat(rustix::fs::CWD, &ptmx, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        } else {
            std::os::unix::fs::symlink(hostile, &ptmx).unwrap();
        }
        let refused = start_on(fixture, &[], |config| {
            terminal(config);
            let (host_path, container_path) = (volume.clone(), "/dev".into());
            config.mounts = vec![Mount { host_path, container_path, ..Default::default() }];
        });
        assert!(refused.await.unwrap_err().contains("terminal"));
    }
}

/// CVE-2025-52881: writes to /proc are redirected by what is mounted there.
async fn nothing_is_mounted_inside_proc(fixture: &Fixture) {
    let volume = place(fixture).join("volume");
    fs::create_dir(&volume).unwrap();
    std::os::unix::fs::symlink("/proc/self", volume.join("link")).unwrap();
    for (target, links) in [
        ("/proc", &[][..]),
        ("/proc/sys", &[]),
        ("/proc/self/attr", &[]),
        ("/way/attr", &[Link("way", "/proc/self")][..]),
    ] {
        let refused = start_on(fixture, links, |config| {
            let (host_path, container_path) = (volume.clone(), target.into());
            config.mounts = vec![Mount { host_path, container_path, ..Default::default() }];
        });
        let refused = refused.await.expect_err(target);
        assert!(refused.contains("inside /proc"), "{refused}");
    }
}

/// CVE-2022-0492: a release agent of cgroup v1 runs on the host.
async fn release_agents_cannot_be_set(fixture: &Fixture) {
    for profile in [None, Some(ProfileType::RuntimeDefault)] {
        let mut config = attacker(fixture, "release-agent");
        config.linux.security_context.seccomp =
            profile.map(|profile_type| SecurityProfile { profile_type, ..Default::default() });
        let (_, log) = fixture.outcome(&config).await;
        assert!(!log.contains("DONE: write") && log.contains("write: "), "{log}");
        assert!(profile.is_none() || !log.contains("DONE"), "{log}");
        fs::remove_file(place(fixture).join("logs/main.log")).unwrap();
    }
}
