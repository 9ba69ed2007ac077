defmodule Server.MixProject do
  use Mix.Project

  def project do
    # The sources' folder is left as it is.
    lockfile = Path.join(System.get_env("MIX_DEPS_PATH", "."), "mix.lock")
    [app: :server, version: "1.0.0", elixir: "~> 1.14", lockfile: lockfile, deps: [{:thousand_island, "1.4.3"}]]
  end

  def application, do: [extra_applications: [:logger]]
end
