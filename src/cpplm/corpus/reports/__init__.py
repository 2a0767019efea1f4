"""Statistics, pages, compile rates, samples and exports of a finished corpus."""
