//! The terminal while a dashboard is on it: taken over, asked for keys, and given back as it was.

use super::draw::{View, draw};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, IsTerminal};
use std::time::Duration;

/// A dashboard that fills the terminal. Dropping it, and a panic, give the terminal back as it was.
pub struct Dashboard {
    terminal: DefaultTerminal,
}

impl Dashboard {
    /// True if there is a terminal to show one on and to take keys from.
    pub fn is_possible() -> bool {
        io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Takes the terminal over.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn open() -> io::Result<Self> {
        ratatui::try_init().map(|terminal| Self { terminal })
    }

    /// Draws `view`.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn show(&mut self, view: &View<'_>) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame, view)).map(drop)
    }

    /// Waits up to `patience` for keys; true if q, Escape or Ctrl-C was among them.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn quit_asked(&mut self, patience: Duration) -> io::Result<bool> {
        let stdin = io::stdin();
        let mut keys = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        match rustix::event::poll(&mut keys, Some(&timeout)) {
            // A signal: whoever waits looks at the stop flag.
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        // Reading from a terminal that has gone, crossterm would try for ever.
        if keys[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut quit = false;
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()? {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                let ctrl_c = key.code == KeyCode::Char('c') && control;
                let asked = matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc) || ctrl_c;
                quit |= asked && key.kind == KeyEventKind::Press;
            }
        }
        Ok(quit)
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // A terminal that has gone cannot be told.
        let _ = ratatui::try_restore();
    }
}
