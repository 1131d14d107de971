//! A control group for each node, so that two nodes on one machine do not interfere.
//!
//! The bed's janitor removes it, by its name.

use std::io;
use std::path::Path;

/// Mount point of control groups.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// Creates the group `name`: once where there is one hierarchy (version 2), and in each hierarchy where there are many
/// (version 1).
pub(super) fn create(name: &str) -> io::Result<()> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return std::fs::create_dir(root.join(name));
    }
    for hierarchy in std::fs::read_dir(root)? {
        let hierarchy = hierarchy?.path();
        if !hierarchy.join("cgroup.procs").exists() {
            continue;
        }
        let group = hierarchy.join(name);
        // Hierarchies of several controllers appear under several names.
        if group.exists() {
            continue;
        }
        std::fs::create_dir(&group)?;
        // A new group of this hierarchy has no processors and no memory until some are assigned.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(inherited) = std::fs::read_to_string(hierarchy.join(file)) {
                std::fs::write(group.join(file), inherited)?;
            }
        }
    }
    Ok(())
}
