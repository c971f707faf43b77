//! Search for many patterns at once by Vectorscan (or Hyperscan, from which it is derived), which is loaded for the
//! first database.
//!
//! Because the library is loaded only then, taut builds and runs without it. Patterns are bytes; ASCII letters match in
//! either case.

use crate::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The return value of all functions on success (HS_SUCCESS).
const SUCCESS: c_int = 0;
/// The flag for matching letters in either case (HS_FLAG_CASELESS).
const CASELESS: c_uint = 1;
/// The mode for searching one contiguous block (HS_MODE_BLOCK).
const BLOCK: c_uint = 1;

/// The zero padding after the searched bytes: version 5.4.9 overlooks patterns that begin within the last 34 bytes, if
/// there are some hundred patterns (seen on a processor with AVX-512).
const BEHIND: [u8; 64] = [0; 64];

/// The reason why patterns could not be compiled to a database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternDatabaseError {
    /// This machine has no Vectorscan; the text is the loader's error.
    #[error("needs Vectorscan: apt install libvectorscan5 ({0})")]
    Missing(String),
    /// Vectorscan refuses the patterns; the text is Vectorscan's error.
    #[error("{0}")]
    Refused(String),
}

/// A set of compiled patterns. It does not change, so many threads may search with it.
#[derive(Debug)]
pub struct PatternDatabase {
    library: &'static Vectorscan,
    database: NonNull<c_void>,
    /// Unique serial number of the database.
    serial: usize,
}

// SAFETY: the database has memory of its own, which the library only reads once the database is made.
unsafe impl Send for PatternDatabase {}
// SAFETY: the library only reads the database once it is made, on any number of threads.
unsafe impl Sync for PatternDatabase {}

/// The number of databases that this process has made.
static SERIAL: AtomicUsize = AtomicUsize::new(0);

impl PatternDatabase {
    /// Compiles patterns. A pattern is identified by its position in `patterns`.
    ///
    /// # Errors
    /// [`PatternDatabaseError`] if the library is missing or refuses the patterns, for example because there are none
    /// or one is empty.
    pub fn new(patterns: &[impl AsRef<[u8]>]) -> Result<Self, PatternDatabaseError> {
        let library = library()?;
        let refused = |reason: &str| PatternDatabaseError::Refused(reason.to_string());
        let count = c_uint::try_from(patterns.len()).map_err(|_| refused("too many patterns"))?;
        if patterns.iter().any(|it| it.as_ref().is_empty()) {
            return Err(refused("a pattern without bytes"));
        }
        let expressions: Vec<CString> = patterns.iter().map(|it| literal(it.as_ref())).collect();
        let begins: Vec<_> = expressions.iter().map(|it| it.as_ptr()).collect();
        let flags = vec![CASELESS; patterns.len()];
        let ids: Vec<c_uint> = (0..count).collect();
        let (mut database, mut error) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the three arrays have `count` elements, and the pointers are those of C strings that outlive the
        // call; the call writes the last two arguments.
        let answer = unsafe {
            (library.compile)(
                begins.as_ptr(),
                flags.as_ptr(),
                ids.as_ptr(),
                count,
                BLOCK,
                ptr::null(),
                &mut database,
                &mut error,
            )
        };
        match NonNull::new(database) {
            Some(database) if answer == SUCCESS => Ok(Self {
                library,
                database,
                // Relaxed: only uniqueness matters.
                serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            }),
            _ => Err(PatternDatabaseError::Refused(library.taken(error))),
        }
    }

    /// Returns the memory of the database in bytes.
    pub fn memory_bytes(&self) -> usize {
        let mut bytes = 0;
        // SAFETY: the database is one of this library, and the number is written by the call.
        unsafe { (self.library.database_size)(self.database.as_ptr(), &mut bytes) };
        bytes
    }

    /// Reports every match to a callback, with the position of the pattern and the offset after its last byte, in the
    /// order of these offsets. Returns false if it could not search: the scratch memory is not prepared for this
    /// database, or the input has 4 GiB or more.
    #[inline]
    pub fn find<F: FnMut(usize, usize)>(
        &self,
        scratch: &mut PatternScratch,
        data: &[u8],
        each: &mut F,
    ) -> bool {
        if !scratch.has_room(self.serial) {
            return false;
        }
        scratch.copied.clear();
        scratch.copied.extend_from_slice(data);
        scratch.copied.extend_from_slice(&BEHIND);
        let Ok(len) = c_uint::try_from(scratch.copied.len()) else {
            return false;
        };
        let mut within = |id: usize, end: usize| {
            if end <= data.len() {
                each(id, end);
            }
        };
        // SAFETY: there are `len` bytes that outlive the call, and scratch memory prepared for this database, which
        // only this call uses.
        let answer = unsafe { self.scan(&scratch.copied, len, scratch.memory, &mut within) };
        answer == SUCCESS
    }

    /// Passes the bytes to the library's search function, which reports each match through `found`.
    ///
    /// # Safety
    /// There must be `len` bytes, and scratch memory that is prepared for this database and not in use by any other
    /// call.
    #[inline]
    unsafe fn scan<F: FnMut(usize, usize)>(
        &self,
        bytes: &[u8],
        len: c_uint,
        memory: *mut c_void,
        each: &mut F,
    ) -> c_int {
        // SAFETY: the caller guarantees bytes and memory; `found::<F>` treats its context pointer as an `F`, which it
        // is.
        unsafe {
            (self.library.scan)(
                self.database.as_ptr(),
                bytes.as_ptr().cast(),
                len,
                0,
                memory,
                found::<F>,
                ptr::from_mut(each).cast(),
            )
        }
    }
}

impl Drop for PatternDatabase {
    fn drop(&mut self) {
        // SAFETY: made by this library, and not used again.
        unsafe { (self.library.free_database)(self.database.as_ptr()) };
    }
}

/// Returns the expression that matches these bytes. The library also has functions for literal bytes, but those accept
/// no pattern that begins with a zero.
fn literal(bytes: &[u8]) -> CString {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
    let each = bytes
        .iter()
        .flat_map(|byte| [b'\\', b'x', digit(byte >> 4), digit(*byte)]);
    CString::new(each.collect::<Vec<u8>>()).unwrap_or_default()
}

/// Passes a match from the library to the callback of [`PatternDatabase::find`].
unsafe extern "C" fn found<F: FnMut(usize, usize)>(
    id: c_uint,
    _from: c_ulonglong,
    to: c_ulonglong,
    _flags: c_uint,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `scan` has passed a pointer to an `F`, which is borrowed by that call alone.
    let each = unsafe { &mut *context.cast::<F>() };
    each(id as usize, to as usize);
    0
}

/// Scratch memory for the searches of one thread.
#[derive(Debug)]
pub struct PatternScratch {
    memory: *mut c_void,
    /// Searched bytes, followed by zeroes.
    copied: Vec<u8>,
    /// One bit per database, indexed by serial number: 1 if the memory is prepared for that database. `first` is the
    /// index of the first stored word.
    room: Vec<usize>,
    first: usize,
}

// SAFETY: the scratch memory belongs to this value alone, and only the value's owner uses it.
unsafe impl Send for PatternScratch {}

impl Default for PatternScratch {
    fn default() -> Self {
        Self {
            memory: ptr::null_mut(),
            copied: Vec::new(),
            room: Vec::new(),
            first: 0,
        }
    }
}

const BITS: usize = usize::BITS as usize;
const COPIED_BYTES: usize = 1 << 17;

impl PatternScratch {
    /// Prepares the scratch memory for one more database.
    ///
    /// # Errors
    /// There is not enough memory; the scratch memory is then prepared for no database.
    pub fn make_room(&mut self, database: &PatternDatabase) -> Result<(), PatternDatabaseError> {
        let library = database.library;
        // SAFETY: null or scratch memory of this library, which the call may replace by a larger one; the database is
        // one of this library.
        let answer =
            unsafe { (library.alloc_scratch)(database.database.as_ptr(), &mut self.memory) };
        if answer != SUCCESS {
            // The library has freed the previous memory.
            *self = Self::default();
            let reason = format!("no scratch memory (error {answer})");
            return Err(PatternDatabaseError::Refused(reason));
        }
        // After this, an input allocates memory only if it is longer than the longest packet and a segment of its
        // stream together.
        self.copied.reserve(COPIED_BYTES);
        let word = database.serial / BITS;
        if self.room.is_empty() {
            self.first = word;
        }
        let in_front = self.first.saturating_sub(word);
        self.room.splice(0..0, std::iter::repeat_n(0, in_front));
        self.first -= in_front;
        let place = word - self.first;
        self.room.resize(self.room.len().max(place + 1), 0);
        self.room[place] |= 1 << (database.serial % BITS);
        Ok(())
    }

    #[inline]
    fn has_room(&self, serial: usize) -> bool {
        let word = (serial / BITS).wrapping_sub(self.first);
        self.room
            .get(word)
            .is_some_and(|word| word >> (serial % BITS) & 1 == 1)
    }
}

impl Drop for PatternScratch {
    fn drop(&mut self) {
        if let (Ok(library), false) = (library(), self.memory.is_null()) {
            // SAFETY: made by this library, and not used again.
            unsafe { (library.free_scratch)(self.memory) };
        }
    }
}

/// The structure `hs_compile_error_t`.
#[repr(C)]
struct CompileError {
    message: *const c_char,
    expression: c_int,
}

/// The functions of the library that are called.
#[derive(Debug)]
struct Vectorscan {
    compile: Compile,
    free_error: FreeError,
    free_database: FreeDatabase,
    database_size: DatabaseSize,
    alloc_scratch: AllocScratch,
    free_scratch: FreeScratch,
    scan: Scan,
}

type Compile = unsafe extern "C" fn(
    *const *const c_char,
    *const c_uint,
    *const c_uint,
    c_uint,
    c_uint,
    *const c_void,
    *mut *mut c_void,
    *mut *mut CompileError,
) -> c_int;
type FreeError = unsafe extern "C" fn(*mut CompileError) -> c_int;
type FreeDatabase = unsafe extern "C" fn(*mut c_void) -> c_int;
type DatabaseSize = unsafe extern "C" fn(*const c_void, *mut usize) -> c_int;
type AllocScratch = unsafe extern "C" fn(*const c_void, *mut *mut c_void) -> c_int;
type FreeScratch = unsafe extern "C" fn(*mut c_void) -> c_int;
type Found = unsafe extern "C" fn(c_uint, c_ulonglong, c_ulonglong, c_uint, *mut c_void) -> c_int;
type Scan = unsafe extern "C" fn(
    *const c_void,
    *const c_char,
    c_uint,
    c_uint,
    *mut c_void,
    Found,
    *mut c_void,
) -> c_int;

impl Vectorscan {
    /// Returns the error text for refused patterns, and frees the error.
    fn taken(&self, error: *mut CompileError) -> String {
        let Some(said) = NonNull::new(error) else {
            return "Vectorscan gives no reason".to_string();
        };
        // SAFETY: an error of this library, the message of which is null or a C string within it; freed once, here.
        unsafe {
            let message = said.as_ref().message;
            let text = match message.is_null() {
                true => "Vectorscan gives no reason".to_string(),
                false => CStr::from_ptr(message).to_string_lossy().into_owned(),
            };
            (self.free_error)(error);
            text
        }
    }
}

/// Returns the library, loaded on first use; it stays loaded.
fn library() -> Result<&'static Vectorscan, PatternDatabaseError> {
    static LIBRARY: OnceLock<Result<Vectorscan, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(load).as_ref();
    loaded.map_err(|reason| PatternDatabaseError::Missing(reason.clone()))
}

fn load() -> Result<Vectorscan, String> {
    // SAFETY: the initialisation code of the library has no preconditions.
    let library = unsafe { Library::load(&[c"libhs.so.5"]) }?;
    let symbol = |name: &CStr| library.symbol(name).map(NonNull::as_ptr);
    // SAFETY: the pointers are not null, and the functions have these types in every version of the library that has
    // this name and all of these functions (hs/hs_compile.h, hs/hs_runtime.h, hs/hs_common.h); the library is never
    // unloaded.
    unsafe {
        use std::mem::transmute;
        Ok(Vectorscan {
            compile: transmute::<*mut c_void, Compile>(symbol(c"hs_compile_multi")?),
            free_error: transmute::<*mut c_void, FreeError>(symbol(c"hs_free_compile_error")?),
            free_database: transmute::<*mut c_void, FreeDatabase>(symbol(c"hs_free_database")?),
            database_size: transmute::<*mut c_void, DatabaseSize>(symbol(c"hs_database_size")?),
            alloc_scratch: transmute::<*mut c_void, AllocScratch>(symbol(c"hs_alloc_scratch")?),
            free_scratch: transmute::<*mut c_void, FreeScratch>(symbol(c"hs_free_scratch")?),
            scan: transmute::<*mut c_void, Scan>(symbol(c"hs_scan")?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_matches_of_all_patterns_are_reported_in_either_case() {
        let database = match PatternDatabase::new(&["ab", "b\0", "bab", "\0"]) {
            Err(PatternDatabaseError::Missing(_)) => return println!("skipped: needs Vectorscan"),
            other => other.unwrap(),
        };
        let mut ends = Vec::new();
        let mut scratch = PatternScratch::default();
        // Without scratch memory it does not search.
        assert!(!database.find(&mut scratch, b"ab", &mut |_, _| panic!("found")));
        scratch.make_room(&database).unwrap();
        assert!(database.find(&mut scratch, b"abABb\0", &mut |id, end| {
            ends.push((end, id))
        }));
        ends.sort_unstable();
        assert_eq!(ends, [(2, 0), (4, 0), (4, 2), (6, 1), (6, 3)]);
        assert!(database.memory_bytes() > 0);
        // Memory prepared for one database is not prepared for another until requested.
        let many: Vec<String> = (0..2000)
            .map(|it| format!("pattern {it} of many"))
            .collect();
        let more = PatternDatabase::new(&many).unwrap();
        assert!(!more.find(&mut scratch, b"", &mut |_, _| panic!("found")));
        scratch.make_room(&more).unwrap();
        let mut count = 0;
        assert!(
            more.find(&mut scratch, b"PATTERN 77 of many", &mut |id, _| {
                assert_eq!(id, 77);
                count += 1;
            })
        );
        assert_eq!(count, 1);
        assert!(database.find(&mut scratch, b"ab", &mut |_, _| count += 1) && count == 2);
    }

    #[test]
    fn empty_patterns_are_refused_with_a_reason() {
        for patterns in [&[][..], &[""], &["a", ""]] {
            match PatternDatabase::new(patterns) {
                Err(PatternDatabaseError::Missing(_)) => println!("skipped: needs Vectorscan"),
                Err(PatternDatabaseError::Refused(reason)) => assert!(!reason.is_empty()),
                Ok(_) => panic!("{patterns:?}"),
            }
        }
    }
}
