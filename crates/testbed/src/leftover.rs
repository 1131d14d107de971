//! Leftover processes: found by a variable in their environment, which all their children inherit.

/// Processes that have the variable `name` with this value: number and name of each.
pub fn processes(name: &str, value: &str) -> Vec<String> {
    let mark = format!("{name}={value}");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = processes.filter(|process| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
    });
    marked
        .map(|process| {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("process {} {}", process.file_name().display(), name.trim())
        })
        .collect()
}
