//! What the agent puts onto the machine: the plug-in, which is this program under another name, and the configuration that names
//! it. Both appear whole, the configuration last: from then on the runtime calls.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Timespec, Timestamps};
use serde_json::json;

use crate::plugin;

/// Copies this program into the directory, unless the copy there is of this build.
pub fn plugin(directory: &Path) -> io::Result<()> {
    let source = File::open("/proc/self/exe")?;
    let meta = source.metadata()?;
    let target = directory.join(plugin::NAME);
    let is_same = fs::metadata(&target).is_ok_and(|there| {
        (there.len(), there.mtime(), there.mtime_nsec()) == (meta.len(), meta.mtime(), meta.mtime_nsec())
    });
    if is_same {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    let draft = directory.join(format!(".{}", plugin::NAME));
    let _ = fs::remove_file(&draft); // of an attempt that was cut short
    let copy = File::create_new(&draft)?;
    if rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
        io::copy(&mut &source, &mut &copy)?;
    }
    copy.set_permissions(fs::Permissions::from_mode(0o755))?;
    let time = Timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() };
    rustix::fs::futimens(&copy, &Timestamps { last_access: time, last_modification: time })?;
    drop(copy);
    fs::rename(&draft, &target)
}

/// Writes the configuration, if it is not there as it should be.
pub fn configuration(directory: &Path, name: &str, socket: &Path) -> io::Result<()> {
    let conf = json!({
        "cniVersion": "1.1.0",
        "name": "kelson",
        "plugins": [{
            "type": plugin::NAME,
            "socket": socket,
            "capabilities": {"portMappings": true, "bandwidth": true},
        }],
    });
    let text = format!("{conf:#}\n");
    let path = directory.join(name);
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    // Not a name that a runtime would read.
    let draft = directory.join(format!(".{name}.draft"));
    fs::write(&draft, text)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
    fs::rename(&draft, &path)
}
