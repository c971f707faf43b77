//! Libraries that are loaded at run time, so that the program starts without them.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A loaded library, which stays loaded until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Library(NonNull<c_void>);

impl Library {
    /// Loads the first of the given libraries that exists.
    ///
    /// # Errors
    /// The loader's error for the last library of `names`.
    ///
    /// # Safety
    /// The initialisation code of the library has to be sound.
    pub unsafe fn load(names: &[&CStr]) -> Result<Self, String> {
        if cfg!(target_feature = "crt-static") {
            // In a static build, loading a library would also load a second C library.
            let why =
                "this build of taut is static and loads no libraries: take the Debian package";
            return Err(why.to_string());
        }
        names
            .iter()
            // SAFETY: the name is a C string; the caller knows the library.
            .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
            .find_map(NonNull::new)
            .map(Self)
            .ok_or_else(loader_error)
    }

    /// Returns the address of the function or constant with the given name.
    ///
    /// # Errors
    /// The loader's error if the library has no such symbol.
    pub fn symbol(&self, name: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the handle is that of a loaded library, the name a C string.
        let found = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(found).ok_or_else(loader_error)
    }
}

fn loader_error() -> String {
    // SAFETY: returns null or a string that lasts until this thread's next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_string();
    }
    // SAFETY: the pointer is not null, so it points to such a string.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
