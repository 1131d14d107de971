//! Log of all servers of a simulation, kept in memory.

use std::io::{self, Write};
use std::sync::Arc;

use bowline_server::log;
use parking_lot::Mutex;

/// Lines that all servers have logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerLog(Arc<Mutex<Vec<u8>>>);

impl ServerLog {
    /// Logs everything of this process from now on.
    pub(crate) fn install(level: &str) -> anyhow::Result<Self> {
        let log = Self::default();
        let options = log::Options { level: level.parse()?, ..log::Options::default() };
        tracing::subscriber::set_global_default(log::subscriber(options, log.clone()))?;
        Ok(log)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl Write for ServerLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
