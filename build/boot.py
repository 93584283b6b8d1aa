# How the .pyz begins in Python: with -c from the sh header, and as __main__.py of the archive (build/pyz.py fills in the
# places). The guard's own modules lie in one place as bytecode of this very Python, and are taken from there: reading a
# zip's directory costs more the more is in it. All else is zipimport's. An archive that cannot be read is no reason to
# end with a status that Slurm takes for the prolog's: SIGUSR1 tells the header.
import marshal
import posix
import sys

file = @FILE@
tag = sys.implementation.cache_tag
at = @HOT@.get(tag)
hot = {}
try:
    with open(file, "rb") as archive:
        # `current` may be switched to another version at any moment: from here on this one file, whichever it is.
        try:
            file = sys.argv[0] = posix.readlink("/proc/self/fd/%d" % archive.fileno())
        except OSError:
            pass
        if at and at[2] == sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex():
            archive.seek(at[0])
            data = archive.read(at[1])
            # Another version has other places; there zipimport finds the modules.
            if data[:8].hex() == at[3]:
                hot = marshal.loads(memoryview(data)[8:])
    sys.path[:0] = [file + "/" + tag, file]

    class Hot:
        def find_spec(name, path=None, target=None):
            if name in hot:
                spec = sys.modules["_frozen_importlib"].ModuleSpec(name, Hot)
                if hot[name][0]:
                    below = "/" + name.replace(".", "/")
                    spec.submodule_search_locations = [file + "/" + tag + below, file + below]
                return spec

        def create_module(spec):
            return None

        def exec_module(module):
            exec(marshal.loads(hot[module.__name__][1]), module.__dict__)

    if hot:
        sys.meta_path.insert(0, Hot)
    from guard.__main__ import start
except BaseException:
    posix.kill(posix.getpid(), 10)

start()
