//! The thread that writes dumps.

use super::settings::CaptureError;
use super::shared::{AT_ONCE, PAUSE, Together};
use crate::compression;
use crate::dump::{Begin, Dump, Dumped, Dumps, Output, Target};
use crate::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_sys::spawn_background;

/// Maximum number of finished dumps that the status lists.
const REMEMBERED: usize = 256;
/// Maximum time for which bytes are buffered before they are written to a dump file.
const FLUSH: Duration = Duration::from_millis(500);

/// Starts the thread that writes dumps.
pub(super) fn start_dumps(
    together: &Arc<Together>,
    dumps: Dumps,
    begins: Receiver<Begin>,
) -> Result<JoinHandle<()>, CaptureError> {
    let failed = |error| CaptureError::Output {
        what: match &dumps.target {
            Target::Folder(path) | Target::File(path) => path.display().to_string(),
            Target::Output => "standard output".to_string(),
        },
        error,
    };
    let shared = match &dumps.target {
        Target::Folder(path) => {
            std::fs::create_dir_all(path).map_err(failed)?;
            None
        }
        target => {
            let (ports, snap_bytes) = (&dumps.ports, dumps.snap_bytes);
            let comment = format!("taut capture; {}", dumps.times);
            let zstd = matches!(target, Target::File(path) if compression::is_wanted(path));
            let output = Output::create(target, "", ports, snap_bytes, &comment, zstd);
            Some(output.map_err(failed)?)
        }
    };
    let here = Arc::clone(together);
    let thread = spawn_background("capture-dump", move || {
        write_dumps(&here, &dumps, shared, &begins);
    })?;
    Ok(thread)
}

/// Writes dumps until all packets were processed and the last dump has ended.
fn write_dumps(
    together: &Together,
    dumps: &Dumps,
    mut shared: Option<Output>,
    begins: &Receiver<Begin>,
) {
    let mut running: Vec<Dump> = Vec::new();
    let mut flushed = Instant::now();
    loop {
        // Acquire: this time is read before the requests below, so that no dump begins after the capture's end.
        let looked_ns = together.looked_ns.load(Ordering::Acquire);
        // The end times are read before the requests to begin dumps. A dump that ends because its trigger begins
        // another dump is therefore never extended.
        let untils = end_times(together);
        begin_asked(together, dumps, begins, &mut running);
        let mut has_more = false;
        let mut ended = Vec::new();
        running = running
            .into_iter()
            .filter_map(|mut dump| {
                let trigger = &together.triggers[dump.trigger];
                let until_ns = dump.goes_on(untils[dump.trigger]);
                let write_ns = until_ns.min(looked_ns);
                let looked = dump.write(dumps, &mut shared, trigger, write_ns, AT_ONCE);
                has_more |= looked == AT_ONCE;
                if looked < AT_ONCE && looked_ns > until_ns {
                    // Only after the flush does the dump's result count which packets were written.
                    shared.iter_mut().for_each(Output::flush);
                    ended.push(dump.end());
                    return None;
                }
                Some(dump)
            })
            .collect();
        let is_time = flushed.elapsed() >= FLUSH;
        if is_time || !ended.is_empty() {
            flushed = Instant::now();
            running.iter_mut().for_each(Dump::flush);
        }
        if let Some(shared) = &mut shared
            && (is_time || (!has_more && shared.failing().is_none()))
        {
            shared.flush();
            *lock(&together.pipe_trouble) = shared.failing().map(str::to_string);
        }
        if !running.is_empty() || !ended.is_empty() {
            *lock(&together.dumping) = running.iter().map(Dump::so_far).collect();
        }
        remember(together, ended);
        if looked_ns == u64::MAX && running.is_empty() {
            report_lost(together, shared.as_ref());
            return;
        }
        if !has_more {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Returns, for each trigger, the time up to which its dump stores packets.
fn end_times(together: &Together) -> Vec<u64> {
    let untils = together
        .states
        .iter()
        .map(|it| it.until_ns.load(Ordering::Acquire));
    untils.collect()
}

/// Begins the requested dumps, and ends the earlier dump of each of their triggers.
fn begin_asked(
    together: &Together,
    dumps: &Dumps,
    begins: &Receiver<Begin>,
    running: &mut Vec<Dump>,
) {
    while let Ok(begin) = begins.try_recv() {
        let trigger = &together.triggers[begin.trigger];
        let before = running.iter_mut().filter(|it| it.trigger == begin.trigger);
        before.for_each(|dump| dump.ends(begin.ended_ns));
        let tally = &together.states[begin.trigger].dumped;
        running.push(Dump::begin(dumps, trigger, tally, begin));
    }
}

/// Stores the results of finished dumps for the status. If the capture is ending, their failures are reported as well.
fn remember(together: &Together, ended: Vec<Dumped>) {
    let mut last = lock(&together.dumps);
    for dumped in ended {
        if let Some(error) = &dumped.error
            && together.stop.load(Ordering::Relaxed)
        {
            let words = format!("trigger {}: {error}", dumped.trigger);
            lock(&together.last_words).push(words);
        }
        if last.len() == REMEMBERED {
            last.pop_front();
        }
        last.push_back(dumped);
    }
}

/// Reports at the end of the capture the packets that could not be written to the output that all dumps share, if there
/// are any.
fn report_lost(together: &Together, shared: Option<&Output>) {
    if let Some(shared) = shared
        && let Some(error) = shared.error()
    {
        let words = format!("{} packets were not written: {error}", shared.lost());
        lock(&together.last_words).push(words);
    }
}
