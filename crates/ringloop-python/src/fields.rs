//! The attributes that Python objects have themselves, without those of their classes: asyncio's own state.
//!
//! `getattr` takes five times as long as a lookup in the object's dictionary. And the objects of one class usually got
//! their attributes in the same order, by one `__init__`, so that each is found where it was the last time: that takes a
//! fifth of a lookup.
//!
//! Objects of some of our classes have slots instead, at places that never change (`slotted.rs`).

#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::ptr;
use std::sync::atomic::{
    AtomicIsize, AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyDict, PyString, PyType};

use crate::names;
use crate::objects;
use crate::slotted;

/// An attribute that the objects of a class have, and where in their dictionaries it was found last.
pub(crate) struct Attribute {
    /// The index in the list of names.
    name: usize,
    /// For `PyDict_Next`.
    place: AtomicIsize,
    /// The class whose objects have a slot for it, and where in the object that is; null for none.
    class: AtomicPtr<ffi::PyTypeObject>,
    offset: AtomicUsize,
}

/// An `Attribute` with a name of the list in names.rs.
macro_rules! attribute {
    ($name:literal) => {
        $crate::fields::Attribute::new(const { $crate::names::index($name) })
    };
}

pub(crate) use attribute;

impl Attribute {
    pub(crate) const fn new(name: usize) -> Self {
        Self {
            name,
            place: AtomicIsize::new(0),
            class: AtomicPtr::new(ptr::null_mut()),
            offset: AtomicUsize::new(0),
        }
    }

    /// Notes where the objects of a class have their slot for it. To be called once, before there are any.
    pub(crate) fn find_slot(&self, class: &Bound<'_, PyType>) -> PyResult<()> {
        let offset = slotted::offset_of(class, names::get(class.py(), self.name))?;
        self.offset.store(offset, Relaxed);
        self.class.store(class.as_type_ptr(), Relaxed);
        Ok(())
    }
}

/// The attributes of an object.
pub(crate) struct Fields<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    dict: OnceCell<Bound<'py, PyDict>>,
}

impl<'a, 'py> Fields<'a, 'py> {
    /// Of an object whose class is an ordinary one of Python's, without data descriptors for the names that are asked for.
    #[inline]
    pub(crate) fn of(object: &'a Bound<'py, PyAny>) -> Self {
        Self {
            object,
            dict: OnceCell::new(),
        }
    }

    /// The object's dictionary, which is made now if the object has none.
    #[inline]
    fn dict(&self) -> PyResult<&Bound<'py, PyDict>> {
        if let Some(dict) = self.dict.get() {
            return Ok(dict);
        }
        let object = self.object;
        // SAFETY: the GIL is held and the object is alive; the result is a new reference, or null with an exception set.
        let dict = unsafe {
            let dict = ffi::PyObject_GenericGetDict(object.as_ptr(), ptr::null_mut());
            Bound::from_owned_ptr_or_err(object.py(), dict)?
        };
        let dict = dict.cast_into()?;
        Ok(self.dict.get_or_init(|| dict))
    }

    /// Where the object has its slot for an attribute; None if it is kept in the dictionary.
    #[inline]
    fn slot(&self, attribute: &Attribute) -> Option<*mut *mut ffi::PyObject> {
        let object = self.object.as_ptr();
        // SAFETY: the GIL is held and the object is alive. `find_slot` has found the slot in the objects of this class.
        unsafe {
            if ffi::Py_TYPE(object) != attribute.class.load(Relaxed) {
                return None;
            }
            let offset = attribute.offset.load(Relaxed);
            Some(object.byte_add(offset).cast::<*mut ffi::PyObject>())
        }
    }

    /// The same, also for objects of derived classes.
    fn slot_or_inherited(&self, attribute: &Attribute) -> Option<*mut *mut ffi::PyObject> {
        let (object, class) = (self.object.as_ptr(), attribute.class.load(Relaxed));
        // SAFETY: the GIL is held and the object is alive. The class lives for ever. `find_slot` has found the slot in
        // its objects, and it is at the same place in those of derived classes.
        unsafe {
            if class.is_null() || ffi::PyObject_TypeCheck(object, class) == 0 {
                return None;
            }
            let offset = attribute.offset.load(Relaxed);
            Some(object.byte_add(offset).cast::<*mut ffi::PyObject>())
        }
    }

    /// The object that a slot of this one refers to.
    ///
    /// # Safety
    /// The slot is one of this object's.
    #[inline]
    unsafe fn load(&self, slot: *mut *mut ffi::PyObject) -> Option<Bound<'py, PyAny>> {
        let py = self.object.py();
        // SAFETY: the GIL is held; the slot refers to its object, or is null. Whoever changes it is in a critical section
        // of the object, as the interpreter's own functions are.
        with_critical_section(self.object, || unsafe {
            Bound::from_borrowed_ptr_or_opt(py, *slot)
        })
    }

    /// Replaces what a slot of the object refers to; the reference that was there becomes the caller's.
    ///
    /// # Safety
    /// The slot is one of this object's, and the new reference is the caller's to give away, or null.
    #[inline]
    unsafe fn replace(
        &self,
        slot: *mut *mut ffi::PyObject,
        value: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: the GIL is held; the slot is one of this object's, which is the function's contract. Without the GIL, the
        // interpreter reads it atomically, and may do so outside of a critical section.
        with_critical_section(self.object, || unsafe {
            if cfg!(Py_GIL_DISABLED) {
                AtomicPtr::from_ptr(slot).swap(value, AcqRel)
            } else {
                ptr::replace(slot, value)
            }
        })
    }

    /// Whether the object may have attributes besides the `count` that its class gives to all.
    #[inline]
    pub(crate) fn has_others(&self, count: usize) -> PyResult<bool> {
        match slotted::is_changed(self.object) {
            Some(is_changed) => Ok(is_changed),
            None => Ok(self.dict()?.len() != count),
        }
    }

    /// An attribute that is not in a slot, if the object has it itself.
    #[inline]
    pub(crate) fn find(&self, name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if slotted::is_changed(self.object) == Some(false) {
            return Ok(None);
        }
        let py = name.py();
        // SAFETY: the GIL is held, and both objects are alive.
        unsafe { objects::dict_item(py, self.dict()?.as_ptr(), name.as_ptr()) }
    }

    /// Whether the object has one of these itself. None of them is in a slot.
    pub(crate) fn has_any(&self, names: &[&Bound<'py, PyString>]) -> PyResult<bool> {
        let dict = self.dict()?;
        for name in names {
            // SAFETY: the GIL is held, and both objects are alive.
            match unsafe { ffi::PyDict_Contains(dict.as_ptr(), name.as_ptr()) } {
                0 => {}
                1 => return Ok(true),
                _ => return Err(PyErr::fetch(dict.py())),
            }
        }
        Ok(false)
    }

    /// An attribute, if the object has it itself.
    pub(crate) fn own(&self, attribute: &Attribute) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.object.py();
        match self.slot_or_inherited(attribute) {
            // SAFETY: the slot is one of this object's.
            Some(slot) => Ok(unsafe { self.load(slot) }),
            None => self.find(names::get(py, attribute.name)),
        }
    }

    /// An attribute; where the object hasn't it itself, its class decides.
    #[inline]
    pub(crate) fn get(&self, attribute: &Attribute) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        let name = names::get(py, attribute.name);
        if let Some(slot) = self.slot(attribute) {
            // SAFETY: the slot is one of this object's.
            let value = unsafe { self.load(slot) };
            return value.map_or_else(|| self.object.getattr(name), Ok);
        }
        if cfg!(Py_GIL_DISABLED) {
            // What `PyDict_Next` finds is borrowed, and another thread could take it away.
            return match self.find(name)? {
                Some(found) => Ok(found),
                None => self.object.getattr(name),
            };
        }
        let mut place = attribute.place.load(Relaxed);
        let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the GIL is held. `PyDict_Next` takes any place: what it finds there is borrowed, and counts only if it
        // has the name that was asked for.
        unsafe {
            let dict = self.dict()?.as_ptr();
            let found = ffi::PyDict_Next(dict, &raw mut place, &raw mut key, &raw mut value);
            if found != 0 && key == name.as_ptr() {
                return Ok(Bound::from_borrowed_ptr(py, value));
            }
        }
        self.look_up(attribute, name)
    }

    /// Finds an attribute that is somewhere else than last time.
    #[cold]
    fn look_up(
        &self,
        attribute: &Attribute,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(found) = self.find(name)? else {
            return self.object.getattr(name);
        };
        let (mut place, mut key) = (0, ptr::null_mut());
        // SAFETY: the GIL is held. `place` begins at zero, nothing changes the dictionary meanwhile, and no value is
        // asked for. The keys are only compared by address.
        unsafe {
            loop {
                let before = place;
                let dict = self.dict()?.as_ptr();
                let none = ptr::null_mut();
                if ffi::PyDict_Next(dict, &raw mut place, &raw mut key, none) == 0 {
                    break;
                }
                if key == name.as_ptr() {
                    attribute.place.store(before, Relaxed);
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Whether an attribute is true.
    #[inline]
    pub(crate) fn is(&self, attribute: &Attribute) -> PyResult<bool> {
        self.get(attribute)?.is_truthy()
    }

    /// Sets an attribute.
    #[inline]
    pub(crate) fn set(&self, attribute: &Attribute, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = self.object.py();
        if let Some(slot) = self.slot_or_inherited(attribute) {
            // SAFETY: the GIL is held. The slot owns what it refers to, and has its new value before the old one goes.
            unsafe {
                let before = self.replace(slot, value.clone().into_ptr());
                ffi::Py_XDECREF(before);
            }
            return Ok(());
        }
        let name = names::get(py, attribute.name);
        // SAFETY: the GIL is held and all objects are alive.
        match unsafe { ffi::PyDict_SetItem(self.dict()?.as_ptr(), name.as_ptr(), value.as_ptr()) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(py)),
        }
    }

    /// Deletes an attribute, if the object has it itself.
    pub(crate) fn delete(&self, attribute: &Attribute) -> PyResult<bool> {
        let py = self.object.py();
        if let Some(slot) = self.slot_or_inherited(attribute) {
            // SAFETY: the GIL is held. The slot owns what it refers to; that reference is moved out, and null says that
            // there is none.
            let before = unsafe { self.replace(slot, ptr::null_mut()) };
            // SAFETY: the reference was the slot's.
            unsafe { ffi::Py_XDECREF(before) };
            return Ok(!before.is_null());
        }
        let name = names::get(py, attribute.name);
        let dict = self.dict()?;
        with_critical_section(dict, || {
            if self.find(name)?.is_none() {
                return Ok(false);
            }
            // SAFETY: the GIL is held and both objects are alive.
            match unsafe { ffi::PyDict_DelItem(dict.as_ptr(), name.as_ptr()) } {
                0 => Ok(true),
                _ => Err(PyErr::fetch(py)),
            }
        })
    }
}
