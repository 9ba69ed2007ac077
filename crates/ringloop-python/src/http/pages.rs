//! Which requests the server answers itself, by their paths: an ASGI application of its own does so
//! (`python/ringloop/http/_pages.py`), whatever the interface of the user's application is.

use pyo3::prelude::*;

use crate::objects::New;

/// Who answers a request.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Route {
    #[default]
    Application,
    /// The server, at this very path. It does so above `limit_concurrency`, too: who looks after the server needs it then.
    Page,
    /// The server, below a prefix.
    Files,
}

/// Who answers a request, and whether it is in the access log.
#[derive(Clone, Copy)]
pub(super) struct Dispatch {
    pub(super) route: Route,
    pub(super) is_logged: bool,
}

/// The paths that the server answers itself. They are below `root_path`, without percent-encoding.
#[derive(Default)]
pub(super) struct Routes {
    paths: Vec<String>,
    /// Without a slash at the end.
    prefixes: Vec<String>,
    unlogged: Vec<String>,
}

impl Routes {
    /// As the attributes of the same names say.
    pub(super) fn of(pages: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            paths: pages.getattr(New("paths"))?.extract()?,
            prefixes: pages.getattr(New("prefixes"))?.extract()?,
            unlogged: pages.getattr(New("unlogged"))?.extract()?,
        })
    }

    /// Who answers requests for a path.
    pub(super) fn find(&self, path: &str) -> Dispatch {
        let is_at = |other: &String| other == path;
        let is_below = |prefix: &String| {
            let rest = path.strip_prefix(prefix.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let route = if self.paths.iter().any(is_at) {
            Route::Page
        } else if self.prefixes.iter().any(is_below) {
            Route::Files
        } else {
            Route::Application
        };
        Dispatch {
            route,
            is_logged: !self.unlogged.iter().any(is_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_a_slash() {
        let strings = |all: &[&str]| all.iter().map(|&it| it.to_owned()).collect();
        let routes = Routes {
            paths: strings(&["/health", "/files/metrics"]),
            prefixes: strings(&["/files"]),
            unlogged: strings(&["/health"]),
        };
        let route = |path| routes.find(path).route;
        for path in ["/", "", "/health/", "/healthy", "/filesystem", "/x/files/y"] {
            assert!(route(path) == Route::Application, "{path}");
        }
        for path in ["/files", "/files/", "/files/x", "/files//"] {
            assert!(route(path) == Route::Files, "{path}");
        }
        for path in ["/health", "/files/metrics"] {
            assert!(route(path) == Route::Page, "{path}");
            assert_eq!(routes.find(path).is_logged, path != "/health");
        }
    }

    #[test]
    fn the_empty_prefix_is_everything() {
        let routes = Routes {
            prefixes: vec![String::new()],
            ..Routes::default()
        };
        assert!(routes.find("/x").route == Route::Files);
        // The target of OPTIONS.
        assert!(routes.find("*").route == Route::Application);
    }
}
